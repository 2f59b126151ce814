"""Explorers: small instruments to touch. One class each; the arithmetic is a pure function that is tested alone."""

from course_lib.explore.accumulation import AccumulationExplorer, accumulation_cuts
from course_lib.explore.bits import BitExplorer, BitRow, bit_rows
from course_lib.explore.buckets import BucketExplorer
from course_lib.explore.cube import CubeExplorer
from course_lib.explore.experts import ExpertsExplorer
from course_lib.explore.film import FilmExplorer
from course_lib.explore.matmul import MatmulExplorer
from course_lib.explore.memory_bar import MemoryBarExplorer
from course_lib.explore.pipeline import PipelineExplorer
from course_lib.explore.ring import RingExplorer, ring_frames
from course_lib.explore.scale import ScaleExplorer, scale_data
from course_lib.explore.tiers import TiersExplorer
from course_lib.explore.zero import ZeroExplorer

__all__ = [
    "AccumulationExplorer",
    "BitExplorer",
    "BitRow",
    "BucketExplorer",
    "CubeExplorer",
    "ExpertsExplorer",
    "FilmExplorer",
    "MatmulExplorer",
    "MemoryBarExplorer",
    "PipelineExplorer",
    "RingExplorer",
    "ScaleExplorer",
    "TiersExplorer",
    "ZeroExplorer",
    "accumulation_cuts",
    "bit_rows",
    "ring_frames",
    "scale_data",
]
