"""The experiments, one line each: `python -m experiments`."""

import importlib
import pkgutil

import experiments


def main() -> None:
    """Print the name of each module with a command, and its purpose."""
    names = (module.name for module in pkgutil.iter_modules(experiments.__path__))
    modules = {name: importlib.import_module(f"{experiments.__name__}.{name}") for name in names if name != "__main__"}
    purposes = {name: module.__doc__.partition("\n")[0] for name, module in modules.items() if hasattr(module, "main")}
    print(f"python -m {experiments.__name__}.NAME --help says how; NAME is")
    for name, purpose in purposes.items():
        print(f"  {name:{max(map(len, purposes))}}  {purpose}")


if __name__ == "__main__":
    main()
