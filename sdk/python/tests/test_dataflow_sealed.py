"""Messages through a rendezvous, and its possible attacks."""

import json
import unittest

from nearpath.dataflow._sealed import TAG_DIGITS, Seal, new_key


class SealTests(unittest.TestCase):
    def setUp(self):
        self.key = new_key()
        self.job, self.worker = Seal.of_job(self.key), Seal.of_worker(self.key)

    def test_a_sealed_message_opens_unchanged(self):
        for number in range(3):
            message = {"attempt": number, "why": "größer \n"}
            self.assertEqual(self.worker.open(self.job.close(message)), message)
            self.assertEqual(self.job.open(self.worker.close(message)), message)

    def test_a_repeated_or_older_message_is_refused(self):
        old, new = self.job.close({"attempt": 1}), self.job.close({"attempt": 2})
        self.assertEqual(self.worker.open(new), {"attempt": 2})
        self.assertIsNone(self.worker.open(new))
        self.assertIsNone(self.worker.open(old))

    def test_lost_messages_do_not_block_later_ones(self):
        lost = [self.job.close({"attempt": 1}) for _ in range(5)]
        self.assertEqual(len(set(lost)), 5)
        self.assertEqual(self.worker.open(self.job.close({"attempt": 2})), {"attempt": 2})

    def test_a_sender_refuses_its_own_message(self):
        self.assertIsNone(self.job.open(self.job.close({"end": True})))
        self.assertIsNone(self.worker.open(self.worker.close({"finished": True})))

    def test_a_changed_message_is_refused(self):
        text = self.job.close({"end": False})
        for at in range(len(text)):
            changed = text[:at] + ("0" if text[at] != "0" else "1") + text[at + 1 :]
            self.assertIsNone(self.worker.open(changed) if at != TAG_DIGITS else None, f"byte {at}")
        self.assertEqual(self.worker.open(text), {"end": False})

    def test_an_unsealed_message_is_refused(self):
        for text in ("", " ", "{}", "null", json.dumps({"end": True}), "0" * TAG_DIGITS + " {}", "ü" * 100, sealed_with(new_key())):
            self.assertIsNone(self.worker.open(text))

    def test_two_starts_with_the_same_orders_are_distinguished(self):
        other = Seal.of_worker(self.key)
        self.assertIsNotNone(self.job.open(self.worker.close({})))
        self.assertIsNotNone(self.job.open(other.close({"attempt": 0})))
        self.assertIsNotNone(self.job.open(self.worker.close({})))


def sealed_with(key):
    return Seal.of_job(key).close({"end": True})


if __name__ == "__main__":
    unittest.main()
