"""The README's Python runs as it stands."""

import re
import subprocess
import sys
from pathlib import Path

from test_road import road  # noqa: F401  (a fixture)

README = Path(__file__).parents[2] / "README.md"


def test_python_blocks(road, tmp_path):  # noqa: F811
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "pretrained").symlink_to(road / "pre")
    (tmp_path / "demo" / "finetuned").symlink_to(road / "fine")
    (tmp_path / "demo" / "saved_model").symlink_to(road / "served")
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(blocks) == 4
    for block in blocks:
        subprocess.run([sys.executable, "-c", block], cwd=tmp_path, check=True)
    assert (tmp_path / "model.keras").is_file()
