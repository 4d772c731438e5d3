"""Decisions about dead, slow and expiring workers, without processes and clocks."""

import unittest

from attempts import attempt, report

from nearpath.dataflow._process_state import shorten_stacks
from nearpath.dataflow._renewals import StartLifetime, Renewals, margin
from nearpath.dataflow._stalls import Stalls
from nearpath.dataflow._stragglers import Sample, Stragglers
from nearpath.dataflow._watch import Watch


class LivenessTests(unittest.TestCase):
    """Observes four workers, of which `d` is tested. Checks run ten times a second, messages arrive each second."""

    def setUp(self):
        self.watch, self.now = Watch(contact_timeout=60.0, silence_timeout=10.0), 0.0

    def advance(self, seconds, senders="abcd", ready="abcd", is_connected=True):
        dead = {}
        for _ in range(round(seconds * 10)):
            self.now += 0.1
            for name in senders if round(self.now * 10) % 10 == 0 else "":
                self.watch.record_message(name, self.now)
            dead |= self.watch.find_dead({name: name in ready for name in "abcd"}, is_connected, self.now)
        return dead

    def test_a_worker_that_is_silent_while_others_send_is_dead(self):
        self.assertEqual(self.advance(20), {})
        self.assertEqual(self.advance(9, senders="abc"), {})
        self.assertEqual(list(self.advance(3, senders="abc")), ["d"])

    def test_a_message_resets_the_silence(self):
        self.advance(5)
        self.assertEqual(self.advance(9, senders="abc") | self.advance(2) | self.advance(9, senders="abc"), {})

    def test_a_common_short_silence_is_no_death(self):
        """The rendezvous was unreachable."""
        self.advance(5)
        self.assertEqual(self.advance(40, senders="") | self.advance(5, senders="ab") | self.advance(5), {})

    def test_a_common_long_silence_is_a_death_of_all(self):
        self.advance(5)
        self.assertEqual(set(self.advance(62, senders="")), set("abcd"))

    def test_no_worker_is_dead_while_the_job_is_disconnected(self):
        self.advance(5)
        self.assertEqual(self.advance(300, senders="", is_connected=False), {})

    def test_no_worker_is_dead_after_the_job_was_stopped(self):
        self.advance(5)
        self.now += 600.0
        self.assertEqual(self.advance(5), {})

    def test_a_worker_without_a_first_message_is_dead_after_the_contact_timeout(self):
        self.assertEqual(self.advance(59, senders="abc", ready="abc"), {})
        self.assertEqual(self.advance(2, senders="abc", ready="abc"), {"d": "no message within 60 s"})

    def test_a_restart_resets_the_contact_timeout(self):
        self.advance(5), self.advance(9, senders="abc")
        self.watch.forget("d"), self.watch.begin()
        self.assertEqual(self.advance(50, senders="abc", ready="abc"), {})

    def test_a_silent_worker_does_not_get_the_contact_timeout_of_a_start(self):
        self.advance(5)
        self.watch.begin()
        self.assertEqual(list(self.advance(13, senders="abc", ready="abc")), ["d"])


class LocalLivenessTests(unittest.TestCase):
    def test_silence_on_one_machine_counts_while_nobody_sends(self):
        """No network separates local workers from their job, so each silence is the worker's own."""
        watch, dead = Watch(contact_timeout=60.0, silence_timeout=10.0, is_networked=False), {}
        watch.record_message("a", 0.0)
        for tenths in range(1, 120):
            dead |= watch.find_dead({"a": True}, True, tenths / 10)
        self.assertEqual(dead, {"a": "silent for 12 s"})


class StallTests(unittest.TestCase):
    """Observes the workers `a` and `b`. Checks and messages follow each second."""

    def setUp(self):
        self.stalls, self.now = Stalls(report_timeout=30.0, stall_timeout=100.0), 0.0

    def advance(self, seconds, progressing="", working="ab"):
        found = []
        for _ in range(seconds):
            self.now += 1.0
            for name in working:
                self.stalls.record(name, self.now if name in progressing else None, self.now)
            found += [(stall.name, stall.is_death) for stall in self.stalls.find(working, self.now)]
        return found

    def test_a_worker_without_progress_is_reported_once_and_dies_at_the_limit(self):
        self.assertEqual(self.advance(30, progressing="b"), [])
        self.assertEqual(self.advance(60, progressing="b"), [("a", False)])
        self.assertIn(("a", True), self.advance(15, progressing="b"))

    def test_progress_ends_a_stall(self):
        self.assertEqual(self.advance(25) + self.advance(1, progressing="ab") + self.advance(25), [])

    def test_a_worker_that_must_wait_is_not_stalled(self):
        self.assertEqual(self.advance(25) + self.advance(25, working="") + self.advance(25), [])

    def test_the_pause_of_a_stopped_job_is_no_stall(self):
        self.advance(20)
        self.now += 600.0
        self.assertEqual(self.advance(20), [])

    def test_frames_of_the_start_and_of_the_control_thread_are_not_shown(self):
        text = 'Thread 1 (x):\n  File "a", line 1 in select\n  File "b", line 2 in _listen\n\n'
        text += 'Current thread 2 (x):\n  File "a", line 3 in change\n  File "b", line 4 in _run_worker\n  File "c", line 5 in fork\n'
        self.assertEqual(shorten_stacks(text), 'Current thread 2 (x):\n  File "a", line 3 in change')


class StragglerTests(unittest.TestCase):
    """Runs stages of workers with given rates."""

    def setUp(self):
        self.stragglers, self.now, self.at = Stragglers(dict.fromkeys("abcd", "stage")), 0.0, {}

    def advance(self, seconds, working=1.0, finished="", finishing="", batch=1000.0, **rates):
        """Advances the time with given rates and working shares. Returns the stragglers."""
        found = set()
        for _ in range(round(seconds)):
            self.now += 1.0
            for name, rate in rates.items():
                before = self.at.get(name, (0.0, 0.0))
                share = working[name] if isinstance(working, dict) else working
                live = name not in finished
                self.at[name] = before[0] + live * share * rate, before[1] + live * share
                sample = Sample(self.now, *self.at[name], steps=int(self.at[name][0] // batch))
                self.stragglers.record(name, sample, name in finishing, name in finished)
            found.update(self.stragglers.find(self.now))
        return found

    def test_a_worker_below_a_third_of_the_median_rate_is_a_straggler(self):
        self.assertEqual(self.advance(60, a=1e6, b=1e6, c=1e6, d=0.4e6), set())
        self.assertEqual(self.advance(5, a=1e6, b=1e6, c=1e6, d=0.1e6), set(), "not yet for SLOW_GRACE")
        self.assertEqual(self.advance(10, a=1e6, b=1e6, c=1e6, d=0.1e6), {"d"})

    def test_a_worker_that_recovers_is_no_straggler(self):
        for _ in range(5):
            self.assertEqual(self.advance(6, a=1e6, b=1e6, c=1e6, d=0.1e6) | self.advance(10, a=1e6, b=1e6, c=1e6, d=1e6), set())

    def test_a_worker_with_more_work_is_no_straggler(self):
        self.assertEqual(self.advance(20, a=1e6, b=1e6, c=1e6, d=1e6), set())
        self.assertEqual(self.advance(600, finished="abc", a=0, b=0, c=0, d=1e6), set())

    def test_a_waiting_worker_is_no_straggler(self):
        shares = {"a": 1.0, "b": 1.0, "c": 1.0, "d": 0.01}
        self.assertEqual(self.advance(60, working=shares, a=1e6, b=1e6, c=1e6, d=0.1e6), set())

    def test_the_last_worker_of_a_stage_is_a_straggler_below_half_of_the_median_rate(self):
        self.advance(20, a=1e6, b=1e6, c=1e6, d=0.45e6)
        self.assertEqual(self.advance(20, finished="abc", a=0, b=0, c=0, d=0.45e6), set(), "not yet twice the median time")
        self.assertEqual(self.advance(20, finished="abc", a=0, b=0, c=0, d=0.45e6), {"d"})

    def test_a_worker_within_a_long_batch_is_no_straggler(self):
        """Each batch takes 20 s, so a worker may complete none within ten."""
        for name, at in zip("abcd", (0, 5, 10, 15)):
            self.at[name] = 0.0, 0.0
        found = set()
        for second in range(400):
            self.now += 1.0
            for name, offset in zip("abcd", (0, 5, 10, 15)):
                batches = (second + offset) // 20
                sample = Sample(self.now, batches * 1000.0, float(second), batches)
                self.stragglers.record(name, sample, False, False)
            found.update(self.stragglers.find(self.now))
        self.assertEqual(found, set())

    def test_a_finishing_worker_is_not_compared(self):
        self.advance(10, a=1e6, b=1e6, c=1e6, d=1e6)
        self.assertEqual(self.advance(60, finishing="d", a=1e6, b=1e6, c=1e6, d=0.0), set())

    def test_two_workers_give_no_median(self):
        self.assertEqual(self.advance(60, a=1e6, b=0.01e6), set())


class RenewalTests(unittest.TestCase):
    def attempt(self, checkpoint=0):
        two = attempt("a", "b", checkpoint=checkpoint)
        report(two, "a"), report(two, "b")
        return two

    def test_the_renewal_margin_depends_on_the_limit(self):
        self.assertEqual([margin(limit) for limit in (6.0, 60.0, 900.0)], [2.0, 20.0, 90.0])

    def test_expiring_starts_are_renewed_after_a_checkpoint(self):
        """Starts past half of their time are renewed from a checkpoint that began afterwards."""
        two, renewals = self.attempt(), Renewals(None)
        lifetimes = {"a": StartLifetime(0.0, 900.0), "b": StartLifetime(300.0, 1200.0)}
        self.assertIsNone(renewals.find_due(two, lifetimes, 800.0))
        self.assertIsNone(renewals.pending)
        self.assertIsNone(renewals.find_due(two, lifetimes, 811.0))
        self.assertEqual(renewals.pending.names, frozenset("ab"))
        self.assertTrue(two.begin_checkpoint(811.0, interval=0.0))
        self.assertIsNone(renewals.find_due(two, lifetimes, 812.0))
        two.record_checkpoint(812.0)
        again = renewals.find_due(two, lifetimes, 812.0)
        self.assertEqual((again.replaced, again.is_death, again.is_slow), (frozenset("ab"), False, False))

    def test_a_start_before_half_of_its_time_is_not_renewed(self):
        renewals = Renewals(None)
        renewals.find_due(self.attempt(), {"a": StartLifetime(0.0, 900.0), "b": StartLifetime(700.0, 1600.0), "c": StartLifetime(0.0)}, 811.0)
        self.assertEqual(renewals.pending.names, frozenset("a"))

    def slow(self, renewals, since, seconds):
        for second in range(seconds):
            now = since + second
            for name, rate in zip("abc", (1000, 1000, 10)):
                report = {"work": rate * now, "working": now, "steps": rate * now / 1000, "finishing": False}
                renewals.record(name, report, False, now)
            renewals.find_due(self.attempts, {}, now)

    def test_a_straggler_is_restarted_once(self):
        self.attempts, renewals = self.attempt(), Renewals(dict.fromkeys("abc", "stage"))
        self.slow(renewals, 1.0, 14)
        self.assertEqual(renewals.pending.names, frozenset("c"))
        self.attempts.pending = 1
        self.attempts.record_checkpoint(20.0)
        self.assertTrue(renewals.find_due(self.attempts, {}, 20.0).is_slow)
        renewals.begin()
        self.slow(renewals, 21.0, 60)
        self.assertIsNone(renewals.pending)

    def test_a_straggler_that_delays_its_checkpoint_is_restarted_without_it(self):
        self.attempts, renewals = self.attempt(checkpoint=3), Renewals(dict.fromkeys("abc", "stage"))
        self.slow(renewals, 1.0, 14)
        waits = renewals.pending.since
        self.assertEqual(renewals.pending.replay_seconds, waits, "all time since the beginning")
        self.assertIsNone(renewals.find_due(self.attempts, {}, 2 * waits - 0.1))
        self.assertEqual(renewals.find_due(self.attempts, {}, 2 * waits).replaced, frozenset("c"))


if __name__ == "__main__":
    unittest.main()
