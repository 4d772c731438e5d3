"""Whom a job takes for dead or slow, and starts anew though they live; without processes and without a clock."""

import unittest

from attempts import attempt, report

from nearpath.dataflow._renewals import StartLifetime, Renewals, margin
from nearpath.dataflow._stragglers import Sample, Stragglers
from nearpath.dataflow._watch import Watch


class LivenessTests(unittest.TestCase):
    """Four workers; `d` is the one that matters. Looks every tenth of a second, words every second."""

    def setUp(self):
        self.watch, self.now = Watch(contact_timeout=60.0, silence_timeout=10.0), 0.0

    def go_on(self, seconds, speak="abcd", ready="abcd", is_connected=True):
        dead = {}
        for _ in range(round(seconds * 10)):
            self.now += 0.1
            for name in speak if round(self.now * 10) % 10 == 0 else "":
                self.watch.note_message(name, self.now)
            dead |= self.watch.find_dead({name: name in ready for name in "abcd"}, is_connected, self.now)
        return dead

    def test_who_is_silent_while_others_speak(self):
        self.assertEqual(self.go_on(20), {})
        self.assertEqual(self.go_on(9, speak="abc"), {})
        self.assertEqual(list(self.go_on(3, speak="abc")), ["d"])

    def test_a_word_in_time(self):
        self.go_on(5)
        self.assertEqual(self.go_on(9, speak="abc") | self.go_on(2) | self.go_on(9, speak="abc"), {})

    def test_all_are_silent_for_a_while_and_nobody_is_dead(self):
        """Whoever carries their words was away."""
        self.go_on(5)
        self.assertEqual(self.go_on(40, speak="") | self.go_on(5, speak="ab") | self.go_on(5), {})

    def test_all_are_silent_for_ever(self):
        self.go_on(5)
        self.assertEqual(set(self.go_on(62, speak="")), set("abcd"))

    def test_the_job_itself_hears_nothing(self):
        self.go_on(5)
        self.assertEqual(self.go_on(300, speak="", is_connected=False), {})

    def test_the_job_itself_stood_still(self):
        self.go_on(5)
        self.now += 600.0
        self.assertEqual(self.go_on(5), {})

    def test_no_first_word(self):
        self.assertEqual(self.go_on(59, speak="abc", ready="abc"), {})
        self.assertEqual(self.go_on(2, speak="abc", ready="abc"), {"d": "no word from it within 60 s"})

    def test_a_start_anew_has_its_time_again(self):
        self.go_on(5), self.go_on(9, speak="abc")
        self.watch.forget("d"), self.watch.begin()
        self.assertEqual(self.go_on(50, speak="abc", ready="abc"), {})

    def test_who_fell_silent_does_not_get_the_time_of_a_start(self):
        self.go_on(5)
        self.watch.begin()
        self.assertEqual(list(self.go_on(13, speak="abc", ready="abc")), ["d"])


class StragglerTests(unittest.TestCase):
    """Stages of workers that are each at a rate; seconds pass."""

    def setUp(self):
        self.stragglers, self.now, self.at = Stragglers(dict.fromkeys("abcd", "stage")), 0.0, {}

    def go_on(self, seconds, working=1.0, through="", finishing="", batch=1000.0, **rates):
        """Work per working second, of those who work that share of their time. Who has been found."""
        found = set()
        for _ in range(round(seconds)):
            self.now += 1.0
            for name, rate in rates.items():
                before = self.at.get(name, (0.0, 0.0))
                share = working[name] if isinstance(working, dict) else working
                live = name not in through
                self.at[name] = before[0] + live * share * rate, before[1] + live * share
                sample = Sample(self.now, *self.at[name], steps=int(self.at[name][0] // batch))
                self.stragglers.note(name, sample, name in finishing, name in through)
            found.update(self.stragglers.find(self.now))
        return found

    def test_a_third_of_the_others(self):
        self.assertEqual(self.go_on(60, a=1e6, b=1e6, c=1e6, d=0.4e6), set())
        self.assertEqual(self.go_on(5, a=1e6, b=1e6, c=1e6, d=0.1e6), set(), "for a while only")
        self.assertEqual(self.go_on(10, a=1e6, b=1e6, c=1e6, d=0.1e6), {"d"})

    def test_who_comes_back_in_time(self):
        for _ in range(5):
            self.assertEqual(self.go_on(6, a=1e6, b=1e6, c=1e6, d=0.1e6) | self.go_on(10, a=1e6, b=1e6, c=1e6, d=1e6), set())

    def test_who_has_more_to_do_is_not_slow(self):
        self.assertEqual(self.go_on(20, a=1e6, b=1e6, c=1e6, d=1e6), set())
        self.assertEqual(self.go_on(600, through="abc", a=0, b=0, c=0, d=1e6), set())

    def test_who_waits_is_not_slow(self):
        shares = {"a": 1.0, "b": 1.0, "c": 1.0, "d": 0.01}
        self.assertEqual(self.go_on(60, working=shares, a=1e6, b=1e6, c=1e6, d=0.1e6), set())

    def test_the_last_of_its_stage(self):
        self.go_on(20, a=1e6, b=1e6, c=1e6, d=0.45e6)
        self.assertEqual(self.go_on(20, through="abc", a=0, b=0, c=0, d=0.45e6), set(), "not twice as long yet")
        self.assertEqual(self.go_on(20, through="abc", a=0, b=0, c=0, d=0.45e6), {"d"})

    def test_long_batches(self):
        """Each takes 20 s: who has done none in the last ten is in the midst of one."""
        for name, at in zip("abcd", (0, 5, 10, 15)):
            self.at[name] = 0.0, 0.0
        found = set()
        for second in range(400):
            self.now += 1.0
            for name, offset in zip("abcd", (0, 5, 10, 15)):
                batches = (second + offset) // 20
                sample = Sample(self.now, batches * 1000.0, float(second), batches)
                self.stragglers.note(name, sample, False, False)
            found.update(self.stragglers.find(self.now))
        self.assertEqual(found, set())

    def test_who_has_all_its_input_is_not_compared(self):
        self.go_on(10, a=1e6, b=1e6, c=1e6, d=1e6)
        self.assertEqual(self.go_on(60, finishing="d", a=1e6, b=1e6, c=1e6, d=0.0), set())

    def test_two_workers_tell_nothing(self):
        self.assertEqual(self.go_on(60, a=1e6, b=0.01e6), set())


class RenewalTests(unittest.TestCase):
    def attempt(self, checkpoint=0):
        two = attempt("a", "b", checkpoint=checkpoint)
        report(two, "a"), report(two, "b")
        return two

    def test_margins(self):
        self.assertEqual([margin(limit) for limit in (6.0, 60.0, 900.0)], [2.0, 20.0, 90.0])

    def test_time_is_nearly_up(self):
        """All whose time is half over go, behind a checkpoint that began then."""
        two, renewals = self.attempt(), Renewals(None)
        lifetimes = {"a": StartLifetime(0.0, 900.0), "b": StartLifetime(300.0, 1200.0)}
        self.assertIsNone(renewals.find_due(two, lifetimes, 800.0))
        self.assertIsNone(renewals.pending)
        self.assertIsNone(renewals.find_due(two, lifetimes, 811.0))
        self.assertEqual(renewals.pending.names, frozenset("ab"))
        self.assertTrue(two.begin(811.0, every=0.0))
        self.assertIsNone(renewals.find_due(two, lifetimes, 812.0))
        two.completed(812.0)
        again = renewals.find_due(two, lifetimes, 812.0)
        self.assertEqual((again.replaced, again.is_death, again.is_slow), (frozenset("ab"), False, False))

    def test_one_that_is_young_goes_on(self):
        renewals = Renewals(None)
        renewals.find_due(self.attempt(), {"a": StartLifetime(0.0, 900.0), "b": StartLifetime(700.0, 1600.0), "c": StartLifetime(0.0)}, 811.0)
        self.assertEqual(renewals.pending.names, frozenset("a"))

    def slow(self, renewals, since, seconds):
        for second in range(seconds):
            now = since + second
            for name, rate in zip("abc", (1000, 1000, 10)):
                report = {"work": rate * now, "working": now, "steps": rate * now / 1000, "finishing": False}
                renewals.note(name, report, False, now)
            renewals.find_due(self.attempts, {}, now)

    def test_a_straggler_once(self):
        self.attempts, renewals = self.attempt(), Renewals(dict.fromkeys("abc", "stage"))
        self.slow(renewals, 1.0, 14)
        self.assertEqual(renewals.pending.names, frozenset("c"))
        self.attempts.pending = 1
        self.attempts.completed(20.0)
        self.assertTrue(renewals.find_due(self.attempts, {}, 20.0).is_slow)
        renewals.begin()
        self.slow(renewals, 21.0, 60)
        self.assertIsNone(renewals.pending)

    def test_a_straggler_that_holds_up_its_checkpoint(self):
        self.attempts, renewals = self.attempt(checkpoint=3), Renewals(dict.fromkeys("abc", "stage"))
        self.slow(renewals, 1.0, 14)
        waits = renewals.pending.since
        self.assertEqual(renewals.pending.replay_seconds, waits, "all since the beginning")
        self.assertIsNone(renewals.find_due(self.attempts, {}, 2 * waits - 0.1))
        self.assertEqual(renewals.find_due(self.attempts, {}, 2 * waits).replaced, frozenset("c"))


if __name__ == "__main__":
    unittest.main()
