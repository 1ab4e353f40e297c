"""The wall clock stands still; monotonic clocks go on, so that nothing that waits hangs."""

import copyreg
import datetime
import time


def freeze(epoch):
    """``time`` and ``datetime`` say ``epoch`` (unix seconds, UTC); pytest, loaded before, keeps the real clock for durations."""
    real = {name: getattr(time, name) for name in ("localtime", "gmtime", "ctime", "asctime", "strftime", "clock_gettime")}
    wall = (time.CLOCK_REALTIME,)

    def frozen_time():
        return float(epoch)

    def frozen_time_ns():
        return epoch * 10**9

    def localtime(seconds=None):
        return real["localtime"](epoch if seconds is None else seconds)

    def gmtime(seconds=None):
        return real["gmtime"](epoch if seconds is None else seconds)

    def ctime(seconds=None):
        return real["ctime"](epoch if seconds is None else seconds)

    def asctime(parts=None):
        return real["asctime"](localtime() if parts is None else parts)

    def strftime(form, parts=None):
        return real["strftime"](form, localtime() if parts is None else parts)

    def clock_gettime(clock):
        return float(epoch) if clock in wall else real["clock_gettime"](clock)

    time.time, time.time_ns = frozen_time, frozen_time_ns
    for function in (localtime, gmtime, ctime, asctime, strftime, clock_gettime):
        setattr(time, function.__name__, function)
    _freeze_datetime(epoch)


def _freeze_datetime(epoch):
    real_date, real_datetime = datetime.date, datetime.datetime

    class Kind(type):
        """Instances made by C code are of the real classes; they count as instances all the same."""

        def __instancecheck__(cls, value):
            return isinstance(value, cls.__mro__[1]) if cls in (date, moment) else type.__instancecheck__(cls, value)

        def __subclasscheck__(cls, other):
            return issubclass(other, cls.__mro__[1]) if cls in (date, moment) else type.__subclasscheck__(cls, other)

    class date(real_date, metaclass=Kind):
        @classmethod
        def today(cls):
            return cls.fromtimestamp(epoch)

    class moment(real_datetime, metaclass=Kind):
        @classmethod
        def now(cls, tz=None):
            return cls.fromtimestamp(epoch, tz)

        @classmethod
        def today(cls):
            return cls.fromtimestamp(epoch)

        @classmethod
        def utcnow(cls):
            return cls.fromtimestamp(epoch, datetime.timezone.utc).replace(tzinfo=None)

    for new, old in ((date, real_date), (moment, real_datetime)):
        new.__module__, new.__name__, new.__qualname__, new.__doc__ = "datetime", old.__name__, old.__name__, old.__doc__
        new.__repr__ = _named(new, old)
        copyreg.pickle(old, lambda value, new=new: (new, value.__reduce__()[1]))
    datetime.date, datetime.datetime = date, moment


def _named(new, old):
    def __repr__(self):
        text = old.__repr__(self)
        return "datetime." + text if type(self) is new and not text.startswith("datetime.") else text

    return __repr__
