# Code generated from contract/reasons.toml by `cargo xtask generate`. DO NOT EDIT.
"""Reasons of platform errors."""

from typing import Final

RETRY_IS_SAFE: Final = frozenset(
    {
        "slow_request",
        "overload",
        "queue_timeout",
        "cold_timeout",
        "draining",
        "connect_failed",
        "storage_full",
        "read_only",
        "too_early",
        "start_failed",
        "connection_limit",
        "login_locked",
        "not_here",
    }
)
