"""The wall clock stands still; monotonic clocks go on, so that nothing that waits hangs."""

from __future__ import annotations

import copyreg
import datetime
import time
from typing import Any


def freeze(epoch: Any) -> None:
    """``time`` and ``datetime`` say ``epoch`` (unix seconds, UTC). pytest, loaded before, times tests by the real clock."""
    real = {name: getattr(time, name) for name in ("localtime", "gmtime", "ctime", "asctime", "strftime", "clock_gettime")}
    wall = (time.CLOCK_REALTIME,)

    def frozen_time() -> Any:
        return float(epoch)

    def frozen_time_ns() -> Any:
        return epoch * 10**9

    def localtime(seconds: Any = None) -> Any:
        return real["localtime"](epoch if seconds is None else seconds)

    def gmtime(seconds: Any = None) -> Any:
        return real["gmtime"](epoch if seconds is None else seconds)

    def ctime(seconds: Any = None) -> Any:
        return real["ctime"](epoch if seconds is None else seconds)

    def asctime(parts: Any = None) -> Any:
        return real["asctime"](localtime() if parts is None else parts)

    def strftime(form: Any, parts: Any = None) -> Any:
        return real["strftime"](form, localtime() if parts is None else parts)

    def clock_gettime(clock: Any) -> Any:
        return float(epoch) if clock in wall else real["clock_gettime"](clock)

    time.time, time.time_ns = frozen_time, frozen_time_ns
    for function in (localtime, gmtime, ctime, asctime, strftime, clock_gettime):
        setattr(time, function.__name__, function)
    _freeze_datetime(epoch)


def _freeze_datetime(epoch: Any) -> None:
    real_date: Any = datetime.date
    real_datetime: Any = datetime.datetime
    module: Any = datetime

    class Kind(type):
        """Instances made by C code are of the real classes; they count as instances all the same."""

        def __instancecheck__(cls, value: Any) -> Any:
            return isinstance(value, cls.__mro__[1]) if cls in (date, moment) else type.__instancecheck__(cls, value)

        def __subclasscheck__(cls, other: Any) -> Any:
            return issubclass(other, cls.__mro__[1]) if cls in (date, moment) else type.__subclasscheck__(cls, other)

    def today(cls: Any) -> Any:
        return cls.fromtimestamp(epoch)

    def now(cls: Any, tz: Any = None) -> Any:
        return cls.fromtimestamp(epoch, tz)

    def utcnow(cls: Any) -> Any:
        return cls.fromtimestamp(epoch, datetime.timezone(datetime.timedelta(0))).replace(tzinfo=None)

    date: Any = Kind("date", (real_date,), {"today": classmethod(today)})
    moment: Any = Kind(
        "datetime", (real_datetime,), {"today": classmethod(today), "now": classmethod(now), "utcnow": classmethod(utcnow)}
    )
    for new, old in ((date, real_date), (moment, real_datetime)):
        new.__module__, new.__name__, new.__qualname__, new.__doc__ = "datetime", old.__name__, old.__name__, old.__doc__
        new.__repr__ = _named(new, old)
        copyreg.pickle(old, _reduced(new))
    module.date, module.datetime = date, moment


def _named(new: Any, old: Any) -> Any:
    def __repr__(self: Any) -> Any:
        text = old.__repr__(self)
        return "datetime." + text if type(self) is new and not text.startswith("datetime.") else text

    return __repr__


def _reduced(new: Any) -> Any:
    """Values of the real class pickle under the name that the module holds now."""

    def reduce(value: Any) -> Any:
        return new, value.__reduce__()[1]

    return reduce
