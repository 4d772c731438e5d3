"""Words that a rendezvous passes on, and what it could try."""

import json
import unittest

from nearpath.dataflow._sealed import TAG_DIGITS, Seal, new_key


class Sealed(unittest.TestCase):
    def setUp(self):
        self.key = new_key()
        self.job, self.worker = Seal.of_job(self.key), Seal.of_worker(self.key)

    def test_a_word_is_heard_as_it_was_said(self):
        for number in range(3):
            word = {"attempt": number, "why": "größer \n"}
            self.assertEqual(self.worker.open(self.job.close(word)), word)
            self.assertEqual(self.job.open(self.worker.close(word)), word)

    def test_a_word_is_heard_once_and_an_older_one_no_more(self):
        old, new = self.job.close({"attempt": 1}), self.job.close({"attempt": 2})
        self.assertEqual(self.worker.open(new), {"attempt": 2})
        self.assertIsNone(self.worker.open(new))
        self.assertIsNone(self.worker.open(old))

    def test_words_that_were_lost_are_not_missed(self):
        lost = [self.job.close({"attempt": 1}) for _ in range(5)]
        self.assertEqual(len(set(lost)), 5)
        self.assertEqual(self.worker.open(self.job.close({"attempt": 2})), {"attempt": 2})

    def test_a_word_is_not_heard_by_who_said_it(self):
        self.assertIsNone(self.job.open(self.job.close({"end": True})))
        self.assertIsNone(self.worker.open(self.worker.close({"finished": True})))

    def test_nothing_of_a_word_can_be_changed(self):
        said = self.job.close({"end": False})
        for at in range(len(said)):
            changed = said[:at] + ("0" if said[at] != "0" else "1") + said[at + 1 :]
            self.assertIsNone(self.worker.open(changed) if at != TAG_DIGITS else None, f"byte {at}")
        self.assertEqual(self.worker.open(said), {"end": False})

    def test_what_is_no_word_is_not_heard(self):
        for said in ("", " ", "{}", "null", json.dumps({"end": True}), "0" * TAG_DIGITS + " {}", "ü" * 100, said_by(new_key())):
            self.assertIsNone(self.worker.open(said))

    def test_another_start_with_the_same_orders_is_heard_and_not_confused(self):
        other = Seal.of_worker(self.key)
        self.assertIsNotNone(self.job.open(self.worker.close({})))
        self.assertIsNotNone(self.job.open(other.close({"attempt": 0})))
        self.assertIsNotNone(self.job.open(self.worker.close({})))


def said_by(key):
    return Seal.of_job(key).close({"end": True})


if __name__ == "__main__":
    unittest.main()
