// An explorer of a saved notebook, whose kernel is gone. Elsewhere nothing of this happens.

const VIEW = "application/vnd.jupyter.widget-view+json";

/**
 * JupyterLab looks for an output's model for two seconds. If the last look falls before the saved models are read, and
 * the verdict after it, "model not found" stays for good. So when all models are there, what has no view is shown again.
 */
export function showAgain({ widget_manager: manager }) {
  const cells = manager?.context?.model?.cells;
  if (!cells) return;
  clearTimeout(manager.smalearn);
  manager.smalearn = setTimeout(async () => {
    for (const { outputs } of cells) {
      if (outputs && (await lacksView(manager, outputs))) outputs.fromJSON(outputs.toJSON());
    }
  }, 2500);
}

/** Whether one of the outputs is of a model that was saved, and is not seen. */
async function lacksView(manager, outputs) {
  for (let i = 0; i < outputs.length; i++) {
    const id = outputs.get(i).data[VIEW]?.model_id;
    if (!manager.has_model(id)) continue;
    const model = await manager.get_model(id);
    if (!model.comm_live && !Object.keys(model.views).length) return true;
  }
  return false;
}
