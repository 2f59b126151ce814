"""Pipeline schedules as plain data: written down, checked, played on paper. `executor` runs them."""

from course_lib.pipeline.schedule.actions import Action, Kind, Message, Schedule, parse, peak_in_flight
from course_lib.pipeline.schedule.dual import dualpipe
from course_lib.pipeline.schedule.gaps import zb_h2, zb_v
from course_lib.pipeline.schedule.orders import ORDERS, gpipe, interleaved, naive, one_f_one_b, pipedream, zero_bubble
from course_lib.pipeline.schedule.simulate import Costs, Gantt, Span, gantt_of, simulate, unit_costs
from course_lib.pipeline.schedule.validate import checked, problems
