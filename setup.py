"""What pyproject.toml cannot say: a wheel carries the lessons and the data, which stand beside the package here."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

SHIPPED = {
    "notebooks": ["*.ipynb", "pictures/*.svg"],
    "data": ["**/*"],
}


class WithLessons(build_py):
    """Copies what stands beside the package to `labkit/shipped`, where `labkit.files.ours` looks second."""

    def run(self):
        super().run()
        if self.editable_mode:  # the checkout itself is used
            return
        for folder, patterns in SHIPPED.items():
            for pattern in patterns:
                for file in filter(Path.is_file, Path(folder).glob(pattern)):
                    copy = Path(self.build_lib) / "labkit" / "shipped" / file
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(file, copy)


setup(cmdclass={"build_py": WithLessons})
