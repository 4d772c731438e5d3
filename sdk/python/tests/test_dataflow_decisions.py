"""What a job decides, without processes and without a clock. Whom it takes for dead or slow: test_dataflow_renewals.py."""

import unittest

from attempts import attempt, say

from nearpath.dataflow._decide import MOMENT, Again, Attempt, Raised, Seen, Through
from nearpath.dataflow._told import TICK, Told


class Verdicts(unittest.TestCase):
    def test_all_through(self):
        two = attempt("a", "b", done=["c"])
        say(two, "a", finished=True)
        self.assertIsNone(two.verdict(0.0))
        say(two, "b", finished=True)
        self.assertEqual(two.verdict(0.0), Through())

    def test_who_ends_when_it_is_through_has_not_died(self):
        two = attempt("a", "b")
        say(two, "a", finished=True)
        two.bury("a", "")
        self.assertIsNone(two.verdict(0.0))
        two.bury("b", "signal 9")
        self.assertEqual(two.verdict(0.0), Again("b died (signal 9)", frozenset({"b"})))

    def test_several_deaths_at_once_are_one_way_back(self):
        three = attempt("a", "b", "c")
        three.bury("a", "signal 9"), three.bury("c", "exit code 1")
        self.assertEqual(three.verdict(0.0), Again("a died (signal 9), and 1 more", frozenset({"a", "c"})))

    def test_what_raised_counts_before_who_died(self):
        two = attempt("a", "b")
        two.bury("a", "signal 9")
        say(two, "b", failed={"why": "KeyError: 1", "trace": "..."})
        self.assertEqual(two.verdict(0.0), Raised("b", "KeyError: 1", "..."))

    def test_who_lost_a_peer_waits_a_moment_for_a_reason(self):
        two = attempt("a", "b")
        say(two, "a", 5.0, lost="the stream with b is gone")
        self.assertIsNone(two.verdict(5.0))
        self.assertEqual(two.verdict(5.0 + 2 * MOMENT), Again("a: the stream with b is gone"))
        two.bury("b", "signal 9")
        self.assertEqual(two.verdict(5.1), Again("b died (signal 9)", frozenset({"b"})))

    def test_words_of_another_attempt_do_not_count(self):
        one = attempt("a")
        one.hear("a", {"attempt": 2, "finished": True}, 0.0)
        one.hear("stranger", {"attempt": 1}, 0.0)
        self.assertIsNone(one.verdict(0.0))


class Beginnings(unittest.TestCase):
    """Workers elsewhere begin together."""

    def held(self):
        return Attempt(1, 0, ["c"], ["a", "b", "c"], 0.0, is_held=True)

    def test_nobody_begins_before_all_have_been_heard(self):
        two = self.held()
        self.assertEqual(two.gather({"a"}), {"a": True, "b": False})
        self.assertTrue(two.is_held)
        self.assertEqual(two.gather({"a", "b"}), {"a": False, "b": False}, "now each is to say that it takes part")
        self.assertFalse(two.is_held)
        say(two, "b")
        self.assertEqual(two.gather({"a", "b"}), {"a": False, "b": True})

    def test_who_comes_later_holds_nobody(self):
        two = self.held()
        two.gather({"a", "b"})
        two.seen["d"] = Seen("d")
        self.assertEqual(two.gather({"a", "b"}), {"a": False, "b": False, "d": False})
        self.assertFalse(two.is_held)

    def test_nothing_is_expected_of_who_is_through(self):
        two = self.held()
        say(two, "a", finished=True)
        self.assertEqual(two.gather({"a"}), {"b": False})


class Words(unittest.TestCase):
    """What is said to whom, and when."""

    def test_what_is_new_is_said_once(self):
        told = Told(repeat=None)
        self.assertTrue(told.tells("a", {"cut": 1}, 0.0))
        self.assertFalse(told.tells("a", {"cut": 1}, 1000.0))
        self.assertTrue(told.tells("b", {"cut": 1}, 1000.0))
        self.assertTrue(told.tells("a", {"cut": 2}, 1000.0))

    def test_what_may_be_lost_is_said_again(self):
        told = Told(repeat=2.0)
        self.assertEqual([told.tells("a", {"cut": 1}, now) for now in (5.0, 6.9, 7.0, 8.9, 9.0)], [True, False, True, False, True])

    def test_who_is_started_anew_has_heard_nothing(self):
        told = Told(repeat=None)
        told.tells("a", {"cut": 1}, 0.0)
        told.forget("a"), told.forget("nobody")
        self.assertTrue(told.tells("a", {"cut": 1}, 0.0))

    def test_nobody_looks_where_nothing_can_have_changed(self):
        once, again = Told(repeat=None), Told(repeat=2.0)
        for told in (once, again):
            self.assertTrue(told.may_be_new((1, 0), 10.0))
            self.assertFalse(told.may_be_new((1, 0), 10.0 + TICK / 2))
            self.assertTrue(told.may_be_new((1, 1), 10.0 + TICK / 2))
        self.assertFalse(once.may_be_new((1, 1), 20.0))
        self.assertTrue(again.may_be_new((1, 1), 20.0))


class Checkpoints(unittest.TestCase):
    def test_begin_when_all_are_there_and_it_is_time(self):
        two = attempt("a", "b", checkpoint=3)
        say(two, "a", 1.0)
        self.assertFalse(two.begin(10.0, every=5.0))
        say(two, "b", 8.0)
        self.assertFalse(two.begin(10.0, every=5.0), "counted from when all were there")
        self.assertTrue(two.begin(13.0, every=5.0))
        self.assertEqual(two.pending, 4)
        self.assertFalse(two.begin(20.0, every=5.0), "one at a time")

    def test_complete_when_each_has_written_its_own_or_is_through(self):
        three = attempt("a", "b", "c", done=["d"])
        for name in "abc":
            say(three, name)
        three.begin(5.0, every=5.0)
        say(three, "a", saved=1, mark="x")
        say(three, "b", finished=True)
        self.assertIsNone(three.complete())
        say(three, "c", saved=1, mark="y", finished=True)
        self.assertEqual(three.complete(), ({"a": "x", "c": "y"}, ["b", "d"]))
        three.completed(6.0)
        self.assertEqual((three.checkpoint, three.pending), (1, 0))
        self.assertIsNone(three.complete())
        self.assertFalse(three.begin(10.0, every=5.0))

    def test_none_begins_while_somebody_has_lost_a_peer(self):
        one = attempt("a")
        say(one, "a", lost="b")
        one.verdict(1.0)
        self.assertFalse(one.begin(10.0, every=5.0))


if __name__ == "__main__":
    unittest.main()
