"""Makes the tree's own thin Python environment over a shared one.

The shared environment holds torch and the rest, and is used by every clone on the machine, so
nothing of this tree may be installed into it. The thin one in `build/` adds, by a `.pth` file:
the shared site-packages, `python/` (the package with the built extension) and `build/site/`,
which holds generated package metadata so that PyTorch finds our entry points.

Usage: tree_env.py SHARED_ENV THIN_ENV
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import tomllib

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "build" / "site"


def write_if_changed(path: Path, text: str) -> None:
    """Keeps the modification time when there is nothing new."""
    if path.exists() and path.read_text() == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def write_metadata() -> None:
    """Package metadata and entry points, from pyproject.toml and the workspace's version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    workspace = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]
    version = project.get("version") or workspace["package"]["version"]
    name = project["name"]
    info = SITE / f"{name}-{version}.dist-info"
    for stale in SITE.glob("*.dist-info"):
        if stale != info:
            for file in stale.iterdir():
                file.unlink()
            stale.rmdir()
    write_if_changed(
        info / "METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    )
    groups = dict(project.get("entry-points", {}))
    if "scripts" in project:
        groups["console_scripts"] = project["scripts"]
    lines: list[str] = []
    for group, entries in groups.items():
        lines.append(f"[{group}]")
        lines += [f"{entry} = {target}" for entry, target in entries.items()]
        lines.append("")
    write_if_changed(info / "entry_points.txt", "\n".join(lines))


def site_packages(env: Path) -> Path:
    return next(env.glob("lib/python3*/site-packages"))


def make_thin(shared: Path, thin: Path) -> None:
    """Creates or repairs the thin environment; cheap when nothing changed."""
    config = thin / "pyvenv.cfg"
    wanted = str(thin.resolve())
    if not config.exists() or wanted not in config.read_text():
        base = (shared / "bin" / "python").resolve()
        subprocess.run([base, "-m", "venv", "--clear", "--without-pip", thin], check=True)
    # addsitedir also honours the .pth files in the shared folder; the paths are absolute because
    # tools run this Python from anywhere.
    lines = [
        f"import site; site.addsitedir({str(site_packages(shared))!r})",
        str(ROOT / "python"),
        str(SITE),
    ]
    write_if_changed(site_packages(thin) / "ljcompile_tree.pth", "\n".join(lines) + "\n")
    link_tools(shared, thin)


def link_tools(shared: Path, thin: Path) -> None:
    """Puts tools that are programs of their own (tlparse, ruff) beside the thin Python.

    Scripts are left out: their first line names the shared Python. Run them with `python -m`.
    """
    for tool in (shared / "bin").iterdir():
        link = thin / "bin" / tool.name
        if tool.is_symlink() or not tool.is_file() or link.exists():
            continue
        with open(tool, "rb") as file:
            if file.read(4) == b"\x7fELF":
                link.unlink(missing_ok=True)
                link.symlink_to(tool)


def main() -> None:
    shared, thin = (Path(argument).absolute() for argument in sys.argv[1:3])
    write_metadata()
    make_thin(shared, thin)


if __name__ == "__main__":
    main()
