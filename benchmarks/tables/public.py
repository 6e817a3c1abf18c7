"""Public tables that packages of PyPI bring as files; their code is not imported."""

from __future__ import annotations

import csv
import gzip
import importlib.util
import io
import re
import tarfile
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from .rows import Rows, generator

MISSING = {"", "NA", "NaN", "nan", "?", "."}


@dataclass(frozen=True)
class PublicTable:
    """Columns of a file in a package.

    `file` is a path inside the package; behind `!` follows a path inside an archive. `levels` turns
    words into 0, 1, … in their order. Rows with a missing value are left out, and of more than
    `limit` rows a random sample is taken.
    """

    name: str
    about: str
    package: str
    file: str
    target: str
    inputs: tuple[str, ...]
    levels: dict[str, tuple[str, ...]] = field(default_factory=dict)
    header: tuple[str, ...] = ()
    """Names of the columns where the first line has none."""
    limit: int = 20_000

    def missing(self) -> str | None:
        """Why the table is not at hand, if it is not."""
        return None if importlib.util.find_spec(self.package) else f"package {self.package} is not installed"

    def sample(self) -> Rows:
        lines = self.lines()
        header = list(self.header) or [name.strip() for name in lines.pop(0)]
        wanted = [*self.inputs, self.target]
        columns = [header.index(name) for name in wanted]
        words = [[line[c].strip() for c in columns] for line in lines]
        values = np.array(
            [
                [self.number(name, word) for name, word in zip(wanted, row, strict=True)]
                for row in words
                if not MISSING & set(row)
            ]
        )
        if len(values) > self.limit:
            values = values[np.sort(generator(self.name).permutation(len(values))[: self.limit])]
        names = [re.sub(r"\W+", "_", name) for name in wanted]
        return Rows(values[:, :-1], values[:, -1:], names[:-1], names[-1:])

    def number(self, column: str, word: str) -> float:
        return float(self.levels[column].index(word)) if column in self.levels else float(word)

    def lines(self) -> list[list[str]]:
        """The lines of the file, out of its archive."""
        folder = Path(importlib.util.find_spec(self.package).submodule_search_locations[0])
        path, _, member = self.file.partition("!")
        if path.endswith(".tar.gz"):
            with tarfile.open(folder / path) as archive:
                content = archive.extractfile(member).read()
        elif path.endswith(".zip"):
            with zipfile.ZipFile(folder / path) as archive:
                content = archive.read(member)
        elif path.endswith(".gz"):
            content = gzip.decompress((folder / path).read_bytes())
        else:
            content = (folder / path).read_bytes()
        return [line for line in csv.reader(io.StringIO(content.decode())) if line]


class Diabetes(PublicTable):
    """The table of scikit-learn; its inputs and targets are two files."""

    def sample(self) -> Rows:
        from sklearn.datasets import load_diabetes

        table = load_diabetes(scaled=False)
        return Rows(table.data, table.target[:, None], list(self.inputs), [self.target])


class Wine(PublicTable):
    """The first line of the file of scikit-learn is not a header."""

    def lines(self) -> list[list[str]]:
        return super().lines()[1:]


def r_table(name: str, about: str, file: str, target: str, inputs: str, **more) -> PublicTable:
    """A table of an R package, from `pydataset`."""
    path = f"resources.tar.gz!resources/rdata/csv/{file}.csv"
    return PublicTable(name, about, "pydataset", path, target, tuple(inputs.split()), **more)


NO_YES = ("no", "yes")

WINE_COLUMNS = (
    "alcohol malic_acid ash alcalinity magnesium phenols flavanoids nonflavanoids proanthocyanins color "
    "hue od280 proline kind"
)

TABLES: list[PublicTable] = [
    Diabetes(
        "diabetes",
        "progression of diabetes after a year",
        "sklearn",
        "",
        "progression",
        ("age", "sex", "bmi", "bp", "s1", "s2", "s3", "s4", "s5", "s6"),
    ),
    Wine(
        "wine",
        "alcohol of wines from their chemistry",
        "sklearn",
        "datasets/data/wine_data.csv",
        "alcohol",
        tuple(WINE_COLUMNS.split()[1:13]),
        header=tuple(WINE_COLUMNS.split()),
    ),
    PublicTable(
        "auto-mpg",
        "miles per gallon of cars",
        "mlxtend",
        "data/data/autompg.csv.gz",
        "mpg",
        ("cylinders", "displacement", "horsepower", "weight", "acceleration", "year", "origin"),
        header=(
            "cylinders",
            "displacement",
            "horsepower",
            "weight",
            "acceleration",
            "year",
            "origin",
            "car",
            "mpg",
        ),
    ),
    PublicTable(
        "abalone",
        "rings (age) of abalones",
        "sklego",
        "data/abalone.zip!sklego/data/abalone.zip",
        "rings",
        ("length", "diameter", "height", "whole_weight", "shucked_weight", "viscera_weight", "shell_weight"),
    ),
    r_table(
        "boston",
        "median values of homes in Boston",
        "MASS/Boston",
        "medv",
        "crim zn indus chas nox rm age dis rad tax ptratio black lstat",
    ),
    r_table(
        "diamonds",
        "prices of diamonds",
        "ggplot2/diamonds",
        "price",
        "carat cut color clarity depth table x y z",
        levels={
            "cut": ("Fair", "Good", "Very Good", "Premium", "Ideal"),
            "color": tuple("JIHGFED"),
            "clarity": ("I1", "SI2", "SI1", "VS2", "VS1", "VVS2", "VVS1", "IF"),
        },
        limit=5000,
    ),
    r_table(
        "computers",
        "prices of computers",
        "Ecdat/Computers",
        "price",
        "speed hd ram screen cd multi premium ads trend",
        levels={"cd": NO_YES, "multi": NO_YES, "premium": NO_YES},
    ),
    r_table("nox", "NOx beside a highway", "robustbase/NOxEmissions", "LNOx", "julday LNOxEm sqrtWS"),
    r_table(
        "housing",
        "prices of houses in Windsor",
        "Ecdat/Housing",
        "price",
        "lotsize bedrooms bathrms stories driveway recroom fullbase gashw airco garagepl prefarea",
        levels={name: NO_YES for name in ("driveway", "recroom", "fullbase", "gashw", "airco", "prefarea")},
    ),
    r_table(
        "schools",
        "test scores of districts in California",
        "Ecdat/Caschool",
        "testscr",
        "enrltot calwpct mealpct compstu expnstu str avginc elpct",
    ),
    r_table("cpus", "performance of processors", "MASS/cpus", "perf", "syct mmin mmax cach chmin chmax"),
    r_table(
        "quakes", "stations that report an earthquake", "datasets/quakes", "stations", "lat long depth mag"
    ),
    r_table(
        "wages",
        "wages in Ontario",
        "car/SLID",
        "wages",
        "education age sex",
        levels={"sex": ("Female", "Male")},
    ),
    r_table(
        "fatality",
        "traffic deaths in states of the US",
        "Ecdat/Fatality",
        "mrall",
        "year beertax mlda jaild comserd vmiles unrate perinc",
        levels={"jaild": NO_YES, "comserd": NO_YES},
    ),
    r_table("ethanol", "NOx of an engine burning ethanol", "lattice/ethanol", "NOx", "C E"),
    r_table("trees", "timber of cherry trees", "datasets/trees", "Volume", "Girth Height"),
]
