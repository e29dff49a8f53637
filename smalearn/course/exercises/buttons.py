"""Card whose last line, `hint("1.2") · solution("1.2")`, becomes buttons that do just that in the running kernel.

A notebook that is opened again, or read elsewhere, has the card alone: `workbook.explorers` saves no button.
"""

import functools
import os
from collections.abc import Callable
from html import escape

__all__ = ["answering", "pressed"]

SCRIPT = """
export default { render({ model, el }) {
  el.classList.add("jp-RenderedHTMLCommon");
  el.innerHTML = model.get("card");
  const line = el.querySelector(".calls");
  const shown = line.parentElement.appendChild(document.createElement("div"));
  shown.setAttribute("aria-live", "polite");
  model.on("msg:custom", ({ html }) => {
    if (html) return (shown.innerHTML = html);
    line.replaceChildren(...model.get("calls").map((call) => {
      const onclick = () => model.send({ call });
      return Object.assign(document.createElement("button"), { textContent: call, onclick });
    }));
  });
  model.send({ call: "" }); // whoever answers has a kernel
} };
"""


def answering(card: str, calls: dict[str, Callable[[], object]]) -> dict[str, object]:
    """What JupyterLab shows in place of a card: the same with buttons; nothing where no explorer could be saved."""
    course = any(path.endswith(".jupyter") for path in os.environ.get("JUPYTER_CONFIG_PATH", "").split(os.pathsep))
    if not (course and card):
        return {}
    widget = _class()(card=card, calls=list(calls))
    widget.on_msg(lambda _, content, __: widget.send({"html": pressed(calls.get(content["call"]))}))
    return {kind: data for kind, data in widget._repr_mimebundle_()[0].items() if "widget" in kind}


@functools.cache
def _class() -> type:
    import anywidget
    import traitlets

    class Buttons(anywidget.AnyWidget):
        _esm = SCRIPT
        card = traitlets.Unicode().tag(sync=True)
        calls = traitlets.List().tag(sync=True)

    return Buttons


def pressed(call: Callable[[], object] | None) -> str:
    """What a call shows and returns, as HTML."""
    from IPython.utils.capture import capture_output

    if call is None:
        return ""
    with capture_output() as said:
        text = call()
    shown = [output.data.get("text/html") or f"<p>{escape(output.data['text/plain'])}</p>" for output in said.outputs]
    return "".join(shown) + (f"<pre>{escape(text)}</pre>" if text else "")
