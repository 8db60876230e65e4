"""A second data set in SST-2's form: tweets and sentences of product reviews and of editorials.

    pip download --no-deps --no-binary :all: vaderSentiment==0.5
    python examples/lora/snippets.py vaderSentiment-0.5.zip DIR

The archive has 13,098 texts that twenty people each rated from -4 to 4 (Hutto and Gilbert, ICWSM 2014; MIT
licence). The label is the sign of the mean rating. Its film reviews are left out: SST-2 comes from the same.
"""

from __future__ import annotations

import gzip
import io
import random
import sys
import tarfile
import zipfile
from pathlib import Path

ARCHIVE = "vaderSentiment-0.5/additional_resources/hutto_ICWSM_2014.tar.gz"
FILES = ("amazonReviewSnippets", "nytEditorialSnippets", "tweets")
HELD_OUT = 1500


def main(package: Path, folder: Path) -> None:
    """Write train.tsv.gz and dev.tsv.gz."""
    rows = []
    inner = io.BytesIO(zipfile.ZipFile(package).read(ARCHIVE))
    with tarfile.open(fileobj=inner) as archive:
        for name in FILES:
            found = archive.extractfile(f"hutto_ICWSM_2014/{name}_GroundTruth.txt")
            assert found is not None
            for line in io.TextIOWrapper(found, encoding="utf-8", errors="replace"):
                _, rating, text = line.rstrip("\n").split("\t")[:3]
                rows.append(f"{int(float(rating) > 0)}\t{text.lower()}\n")
    random.Random(0).shuffle(rows)
    folder.mkdir(parents=True, exist_ok=True)
    for name, part in (("dev", rows[:HELD_OUT]), ("train", rows[HELD_OUT:])):
        with gzip.open(folder / f"{name}.tsv.gz", "wt", encoding="utf-8") as file:
            file.writelines(["label\tsentence\n", *part])


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
