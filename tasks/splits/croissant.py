"""Croissant 1.0 metadata of a split: what the data are, where they are, how they were made and what they are not for.

Written by us, so that building a split needs no Croissant library; tests validate it with `mlcroissant` and read rows
through it. `mlcroissant` lets a missing required property pass with a warning, so `REQUIRED` is checked here.

Source: the Croissant format specification 1.0 and its Responsible AI vocabulary (https://docs.mlcommons.org/croissant).
"""

from __future__ import annotations

from typing import Any

from tasks.splits.storage import NAME, QUERIES, STREAMS

CONFORMS_TO = "http://mlcommons.org/croissant/1.0"
PUBLISHED = "2026-11-30"  # of the format's first version; a date of building would make equal splits differ
LICENSE = "https://creativecommons.org/licenses/by/4.0/"
REQUIRED = ("name", "description", "license", "url", "datePublished", "creator", "version", "distribution", "recordSet")

_CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "citeAs": "cr:citeAs",
    "column": "cr:column",
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "equivalentProperty": "cr:equivalentProperty",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "extract": "cr:extract",
    "field": "cr:field",
    "fileProperty": "cr:fileProperty",
    "fileObject": "cr:fileObject",
    "fileSet": "cr:fileSet",
    "format": "cr:format",
    "includes": "cr:includes",
    "isLiveDataset": "cr:isLiveDataset",
    "jsonPath": "cr:jsonPath",
    "key": "cr:key",
    "md5": "cr:md5",
    "parentField": "cr:parentField",
    "path": "cr:path",
    "recordSet": "cr:recordSet",
    "references": "cr:references",
    "regex": "cr:regex",
    "repeated": "cr:repeated",
    "replace": "cr:replace",
    "samplingRate": "cr:samplingRate",
    "sc": "https://schema.org/",
    "separator": "cr:separator",
    "source": "cr:source",
    "subField": "cr:subField",
    "transform": "cr:transform",
}

_ABOUT = {
    "text": "Streams over 16 symbols, i.i.d. uniform or from low-entropy n-gram sources, and yes/no questions: did "
    "this candidate of three to six symbols occur in the stream as a contiguous window?",
    "easyhuman": "Streams that repeat a short pattern with one or two breaks, and yes/no questions about the breaks "
    "and their corruptions.",
    "video": "Streams of letters on three conveyor belts, one frame per letter, and yes/no questions: did this clip "
    "occur, with its letters, order and belts? Frames are rendered from symbols and belts.",
}

# Column of each table: (name, Croissant type, whether a list, what it is)
_STREAM_FIELDS = (
    ("stream_id", "sc:Text", False, "Identity of the stream."),
    ("symbols", "sc:Integer", True, "The stream, symbols 0..15."),
    ("rate", "sc:Float", False, "Bits per symbol that name the band; 4 by definition for uniform streams."),
    ("estimate", "sc:Float", False, "Lempel-Ziv estimate, growing-window match length, bits per symbol."),
    ("rules", "sc:Text", False, "JSON: the source that the stream came from."),
    ("belts", "sc:Integer", True, "Video: belt of each symbol, 0..2 from the left."),
)
_QUERY_FIELDS = (
    ("query_id", "sc:Text", False, "Identity of the question."),
    ("stream_id", "sc:Text", False, "The stream it is about."),
    ("query_set", "sc:Text", False, "How its negatives were made."),
    ("candidate", "sc:Integer", True, "The candidate, symbols 0..15."),
    ("candidate_belts", "sc:Integer", True, "Video: belt of each symbol of the candidate."),
    ("label", "sc:Integer", False, "1: the candidate occurred as a contiguous window; 0: it did not."),
    ("age", "sc:Integer", False, "Symbols between its latest occurrence and the end of the stream; -1 for negatives."),
    ("meta", "sc:Text", False, "JSON: kind of candidate, and the pair that it belongs to."),
)


def croissant(index: dict[str, Any], manifests: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The metadata of a split, from its index and its cells' manifests.

    Raises:
        ValueError: when a required property is empty.
    """
    described = {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": CONFORMS_TO,
        "name": f"{NAME}-{index['split']}",
        "version": index["version"],
        "description": f"{_ABOUT[index['split']]} Built by ECC Lab from seed {index['seed']}.",
        "license": LICENSE,
        "url": "https://arxiv.org/abs/2609.00103",
        "datePublished": PUBLISHED,
        "creator": {"@type": "sc:Organization", "name": "ECC Lab"},
        "citeAs": "@misc{eccbench, title={ECCBench}, note={arXiv:2609.00103}}",
        "isLiveDataset": False,
        "keywords": ["memory", "compression", "calibration", "synthetic"],
        "rai:dataCollection": "Generated by a program from a seed; nothing was collected. Every answer was verified "
        "by search.",
        "rai:dataBiases": "Classes are balanced by construction. On low-entropy streams uniform negatives rarely "
        "repeat a symbol and true windows often do, so a candidate alone gives part of the answer away: read the "
        "reference solvers in each manifest.",
        "rai:dataLimitations": "Synthetic recall of short exact windows. A high score says nothing about natural "
        "text or video, nor about remembering meaning.",
        "rai:personalSensitiveInformation": "None: there are no people in the data.",
        "rai:dataReleaseMaintenancePlan": "The version's first number changes with the files' format, its second "
        "with the data; one recipe and seed always give the same bytes.",
        "distribution": [
            _file(key, name, manifest["files"][name])
            for key, manifest in manifests.items()
            for name in (STREAMS, QUERIES)
        ],
        "recordSet": [
            _records(key, name, fields, manifest)
            for key, manifest in manifests.items()
            for name, fields in ((STREAMS, _STREAM_FIELDS), (QUERIES, _QUERY_FIELDS))
        ],
    }
    empty = [name for name in REQUIRED if not described.get(name)]
    if empty:
        raise ValueError(f"Croissant metadata without {', '.join(empty)}")
    return described


def _file(key: str, name: str, stated: dict[str, Any]) -> dict[str, Any]:
    return {
        "@type": "cr:FileObject",
        "@id": f"{key}/{name}",
        "name": f"{key}/{name}",
        "contentUrl": f"{key}/{name}",
        "contentSize": f"{stated['bytes']} B",
        "encodingFormat": "application/x-parquet",
        "sha256": stated["sha256"],
    }


def _records(
    key: str, name: str, fields: tuple[tuple[str, str, bool, str], ...], manifest: dict[str, Any]
) -> dict[str, Any]:
    table = name.removesuffix(".parquet")
    about = f"{table} of cell {key}: {manifest['medium']}, band {manifest['band']}, {manifest['length']} symbols"
    return {
        "@type": "cr:RecordSet",
        "@id": f"{key}/{table}",
        "name": f"{key}/{table}",
        "description": about.capitalize(),
        "key": {"@id": f"{key}/{table}/{fields[0][0]}"},
        "field": [
            {
                "@type": "cr:Field",
                "@id": f"{key}/{table}/{column}",
                "name": column,
                "description": meaning,
                "dataType": kind,
                **({"repeated": True} if several else {}),
                "source": {"fileObject": {"@id": f"{key}/{name}"}, "extract": {"column": column}},
            }
            for column, kind, several, meaning in fields
        ],
    }
