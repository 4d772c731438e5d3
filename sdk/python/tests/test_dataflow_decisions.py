"""What a job decides, without processes and without a clock."""

import unittest

from nearpath.dataflow._decide import MOMENT, Again, Attempt, Raised, Seen, Through
from nearpath.dataflow._renewals import Life, Renewals, margin
from nearpath.dataflow._stragglers import Sample, Stragglers
from nearpath.dataflow._told import TICK, Told
from nearpath.dataflow._watch import Watch


def attempt(*names, done=(), checkpoint=0):
    return Attempt(1, checkpoint, done, [*names, *done], now=0.0)


def say(attempt, name, now=0.0, **state):
    attempt.hear(name, {"attempt": 1, **state}, now)


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


class Silence(unittest.TestCase):
    """Four workers; `d` is the one that matters. Looks every tenth of a second, words every second."""

    def setUp(self):
        self.watch, self.now = Watch(patience=60.0, silence=10.0), 0.0

    def go_on(self, seconds, speak="abcd", ready="abcd", hears=True):
        told = {}
        for _ in range(round(seconds * 10)):
            self.now += 0.1
            for name in speak if round(self.now * 10) % 10 == 0 else "":
                self.watch.heard(name, self.now)
            told |= self.watch.look({name: name in ready for name in "abcd"}, hears, self.now)
        return told

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
        self.assertEqual(self.go_on(300, speak="", hears=False), {})

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


class Slow(unittest.TestCase):
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


class Anew(unittest.TestCase):
    def attempt(self, checkpoint=0):
        two = attempt("a", "b", checkpoint=checkpoint)
        say(two, "a"), say(two, "b")
        return two

    def test_margins(self):
        self.assertEqual([margin(limit) for limit in (6.0, 60.0, 900.0)], [2.0, 20.0, 90.0])

    def test_time_is_nearly_up(self):
        """All whose time is half over go, behind a checkpoint that began then."""
        two, renewals = self.attempt(), Renewals(None)
        lives = {"a": Life(0.0, 900.0), "b": Life(300.0, 1200.0)}
        self.assertIsNone(renewals.look(two, lives, 800.0))
        self.assertIsNone(renewals.wanted)
        self.assertIsNone(renewals.look(two, lives, 811.0))
        self.assertEqual(renewals.wanted.names, frozenset("ab"))
        self.assertTrue(two.begin(811.0, every=0.0))
        self.assertIsNone(renewals.look(two, lives, 812.0))
        two.completed(812.0)
        again = renewals.look(two, lives, 812.0)
        self.assertEqual((again.anew, again.is_death, again.is_slow), (frozenset("ab"), False, False))

    def test_one_that_is_young_goes_on(self):
        renewals = Renewals(None)
        renewals.look(self.attempt(), {"a": Life(0.0, 900.0), "b": Life(700.0, 1600.0), "c": Life(0.0)}, 811.0)
        self.assertEqual(renewals.wanted.names, frozenset("a"))

    def slow(self, renewals, since, seconds):
        for second in range(seconds):
            now = since + second
            for name, rate in zip("abc", (1000, 1000, 10)):
                report = {"work": rate * now, "working": now, "steps": rate * now / 1000, "finishing": False}
                renewals.note(name, report, False, now)
            renewals.look(self.attempts, {}, now)

    def test_a_straggler_once(self):
        self.attempts, renewals = self.attempt(), Renewals(dict.fromkeys("abc", "stage"))
        self.slow(renewals, 1.0, 14)
        self.assertEqual(renewals.wanted.names, frozenset("c"))
        self.attempts.pending = 1
        self.attempts.completed(20.0)
        self.assertTrue(renewals.look(self.attempts, {}, 20.0).is_slow)
        renewals.begin()
        self.slow(renewals, 21.0, 60)
        self.assertIsNone(renewals.wanted)

    def test_a_straggler_that_holds_up_its_checkpoint(self):
        self.attempts, renewals = self.attempt(checkpoint=3), Renewals(dict.fromkeys("abc", "stage"))
        self.slow(renewals, 1.0, 14)
        waits = renewals.wanted.since
        self.assertEqual(renewals.wanted.loss, waits, "all since the beginning")
        self.assertIsNone(renewals.look(self.attempts, {}, 2 * waits - 0.1))
        self.assertEqual(renewals.look(self.attempts, {}, 2 * waits).anew, frozenset("c"))


if __name__ == "__main__":
    unittest.main()
