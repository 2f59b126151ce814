"""Pipeline schedules as plain data: written down, checked, played on paper. `executor` runs them."""

from course_lib.pipeline.schedule.actions import Action, Kind, Message, Schedule, parse, peak_in_flight
from course_lib.pipeline.schedule.dual import dualpipe
from course_lib.pipeline.schedule.gaps import zb_h2, zb_v
from course_lib.pipeline.schedule.orders import ORDERS, gpipe, interleaved, naive, one_f_one_b, pipedream, zero_bubble
from course_lib.pipeline.schedule.simulate import Costs, Gantt, Span, gantt_of, simulate, unit_costs
from course_lib.pipeline.schedule.validate import checked, problems

__all__ = [
    "ORDERS",
    "Action",
    "Costs",
    "Gantt",
    "Kind",
    "Message",
    "Schedule",
    "Span",
    "checked",
    "dualpipe",
    "gantt_of",
    "gpipe",
    "interleaved",
    "naive",
    "one_f_one_b",
    "parse",
    "peak_in_flight",
    "pipedream",
    "problems",
    "simulate",
    "unit_costs",
    "zb_h2",
    "zb_v",
    "zero_bubble",
]
