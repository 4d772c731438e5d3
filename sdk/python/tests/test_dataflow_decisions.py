"""Decisions of a job, without processes and clocks. Dead and slow workers: test_dataflow_renewals.py."""

import unittest

from attempts import attempt, report

from nearpath.dataflow._attempt import PEER_REASON_GRACE, Restart, Attempt, WorkerRaised, WorkerState, Completed
from nearpath.dataflow._send_tracker import POLL_INTERVAL, SendTracker


class OutcomeTests(unittest.TestCase):
    def test_an_attempt_completes_after_all_workers_have_finished(self):
        two = attempt("a", "b", done=["c"])
        report(two, "a", finished=True)
        self.assertIsNone(two.outcome(0.0))
        report(two, "b", finished=True)
        self.assertEqual(two.outcome(0.0), Completed())

    def test_a_finished_worker_that_ends_has_not_died(self):
        two = attempt("a", "b")
        report(two, "a", finished=True)
        two.mark_ended("a", "")
        self.assertIsNone(two.outcome(0.0))
        two.mark_ended("b", "signal 9")
        self.assertEqual(two.outcome(0.0), Restart("b died (signal 9)", frozenset({"b"})))

    def test_several_deaths_cause_one_restart(self):
        three = attempt("a", "b", "c")
        three.mark_ended("a", "signal 9"), three.mark_ended("c", "exit code 1")
        self.assertEqual(three.outcome(0.0), Restart("a died (signal 9), and 1 more", frozenset({"a", "c"})))

    def test_an_exception_takes_precedence_over_a_death(self):
        two = attempt("a", "b")
        two.mark_ended("a", "signal 9")
        report(two, "b", failed={"reason": "KeyError: 1", "trace": "..."})
        self.assertEqual(two.outcome(0.0), WorkerRaised("b", "KeyError: 1", "..."))

    def test_a_lost_peer_waits_for_the_reason_before_a_restart(self):
        two = attempt("a", "b")
        report(two, "a", 5.0, lost="the stream with b is gone")
        self.assertIsNone(two.outcome(5.0))
        self.assertEqual(two.outcome(5.0 + 2 * PEER_REASON_GRACE), Restart("a: the stream with b is gone"))
        two.mark_ended("b", "signal 9")
        self.assertEqual(two.outcome(5.1), Restart("b died (signal 9)", frozenset({"b"})))

    def test_messages_of_another_attempt_are_ignored(self):
        one = attempt("a")
        one.receive("a", {"attempt": 2, "finished": True}, 0.0)
        one.receive("unknown", {"attempt": 1}, 0.0)
        self.assertIsNone(one.outcome(0.0))


class JointStartTests(unittest.TestCase):
    """Remote workers begin together."""

    def held(self):
        return Attempt(1, 0, ["c"], ["a", "b", "c"], 0.0, is_held=True)

    def test_no_worker_begins_before_all_have_reported(self):
        two = self.held()
        self.assertEqual(two.check_arrivals({"a"}), {"a": True, "b": False})
        self.assertTrue(two.is_held)
        self.assertEqual(two.check_arrivals({"a", "b"}), {"a": False, "b": False}, "now each must report its participation")
        self.assertFalse(two.is_held)
        report(two, "b")
        self.assertEqual(two.check_arrivals({"a", "b"}), {"a": False, "b": True})

    def test_a_later_worker_does_not_hold_the_others(self):
        two = self.held()
        two.check_arrivals({"a", "b"})
        two.workers["d"] = WorkerState("d")
        self.assertEqual(two.check_arrivals({"a", "b"}), {"a": False, "b": False, "d": False})
        self.assertFalse(two.is_held)

    def test_a_finished_worker_need_not_report(self):
        two = self.held()
        report(two, "a", finished=True)
        self.assertEqual(two.check_arrivals({"a"}), {"b": False})


class SendTrackerTests(unittest.TestCase):
    """Messages are sent when they change or may be lost."""

    def test_a_new_message_is_sent_once(self):
        tracker = SendTracker(repeat_interval=None)
        self.assertTrue(tracker.should_send("a", {"checkpoint": 1}, 0.0))
        self.assertFalse(tracker.should_send("a", {"checkpoint": 1}, 1000.0))
        self.assertTrue(tracker.should_send("b", {"checkpoint": 1}, 1000.0))
        self.assertTrue(tracker.should_send("a", {"checkpoint": 2}, 1000.0))

    def test_a_message_that_may_be_lost_is_repeated(self):
        tracker = SendTracker(repeat_interval=2.0)
        self.assertEqual([tracker.should_send("a", {"checkpoint": 1}, now) for now in (5.0, 6.9, 7.0, 8.9, 9.0)], [True, False, True, False, True])

    def test_a_restarted_worker_gets_all_messages_again(self):
        tracker = SendTracker(repeat_interval=None)
        tracker.should_send("a", {"checkpoint": 1}, 0.0)
        tracker.forget("a"), tracker.forget("unknown")
        self.assertTrue(tracker.should_send("a", {"checkpoint": 1}, 0.0))

    def test_messages_are_not_compared_without_a_change(self):
        once, again = SendTracker(repeat_interval=None), SendTracker(repeat_interval=2.0)
        for tracker in (once, again):
            self.assertTrue(tracker.has_changes((1, 0), 10.0))
            self.assertFalse(tracker.has_changes((1, 0), 10.0 + POLL_INTERVAL / 2))
            self.assertTrue(tracker.has_changes((1, 1), 10.0 + POLL_INTERVAL / 2))
        self.assertFalse(once.has_changes((1, 1), 20.0))
        self.assertTrue(again.has_changes((1, 1), 20.0))


class CheckpointTests(unittest.TestCase):
    def test_a_checkpoint_begins_when_all_workers_are_ready_and_it_is_due(self):
        two = attempt("a", "b", checkpoint=3)
        report(two, "a", 1.0)
        self.assertFalse(two.begin_checkpoint(10.0, interval=5.0))
        report(two, "b", 8.0)
        self.assertFalse(two.begin_checkpoint(10.0, interval=5.0), "counted from the last join")
        self.assertTrue(two.begin_checkpoint(13.0, interval=5.0))
        self.assertEqual(two.pending, 4)
        self.assertFalse(two.begin_checkpoint(20.0, interval=5.0), "one at a time")

    def test_a_checkpoint_completes_when_each_worker_has_saved_or_finished(self):
        three = attempt("a", "b", "c", done=["d"])
        for name in "abc":
            report(three, name)
        three.begin_checkpoint(5.0, interval=5.0)
        report(three, "a", saved=1, mark="x")
        report(three, "b", finished=True)
        self.assertIsNone(three.saved_states())
        report(three, "c", saved=1, mark="y", finished=True)
        self.assertEqual(three.saved_states(), ({"a": "x", "c": "y"}, ["b", "d"]))
        three.record_checkpoint(6.0)
        self.assertEqual((three.checkpoint, three.pending), (1, 0))
        self.assertIsNone(three.saved_states())
        self.assertFalse(three.begin_checkpoint(10.0, interval=5.0))

    def test_no_checkpoint_begins_while_a_peer_is_lost(self):
        one = attempt("a")
        report(one, "a", lost="b")
        one.outcome(1.0)
        self.assertFalse(one.begin_checkpoint(10.0, interval=5.0))


if __name__ == "__main__":
    unittest.main()
