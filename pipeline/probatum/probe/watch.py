"""What was loaded before the tree's code is left as it was: the watch compares, by identity, and says what changed."""


class Watch:
    """One job's watch."""

    def __init__(self, tree, sealed):
        self.tree, self.sealed = tree, sealed

    def begin(self):
        """Before the first code of the tree."""

    def more(self):
        """After installed plugins were loaded."""

    def session(self, session):
        """When the session starts."""

    def collected(self, session):
        """After collection."""

    def after_call(self):
        """After a test's call, before its fixtures are torn down."""

    def after_test(self):
        """After a test's teardown."""

    def end(self):
        """What is found, sorted."""
        return []


def freeze(epoch):
    """The wall clock stands at ``epoch``."""
