//! Limits of the placement, each with the decision that sets it.

/// Maximum load at which a chain may get a processor, as a share of one (decision 18).
pub(super) const MAX_SMALL_SHARE: f64 = 0.5;
/// Load of a group at which its processor is too small (decision 18).
pub(super) const MAX_SHARED_SHARE: f64 = 0.8;
/// Maximum load of a processor that accepts a group or a thread. Estimate, not measured.
pub(super) const MAX_BUSY_TO_JOIN: f64 = 0.6;
/// Load of a processor at which groups leave it (decision 18).
pub(super) const MIN_BUSY_TO_LEAVE: f64 = 0.9;
/// Load of other programs on a processor at which groups leave it (decision 94).
pub(super) const MIN_FOREIGN_TO_LEAVE: f64 = 0.3;

/// Consecutive rounds in which a chain must be small before it gets a processor (decision 18).
pub(super) const SMALL_ROUNDS: u32 = 2;
/// Rounds that a group or a thread stays away after its first leave (decision 97).
pub(super) const FIRST_AWAY_ROUNDS: u32 = 2;
/// Maximum rounds that a group or a thread stays away after a leave (decision 18).
pub(super) const MAX_AWAY_ROUNDS: u32 = 256;
/// Rounds on one processor after which a leave counts as the first again (decision 18).
pub(super) const SETTLED_ROUNDS: u32 = 64;
/// Consecutive full rounds before a trial of all processors (decision 94). The trial is compared
/// with the last of them, which must not be the beginning of a load.
pub(super) const FULL_ROUNDS: u32 = 2;
/// Rounds from a trial of all processors to the next one (decision 94). It costs little: the group
/// wakes itself across processors for one round.
pub(super) const TRIAL_PAUSE_ROUNDS: u32 = 16;
/// Rounds without short calls after which a lone function may use all processors again
/// (decision 98).
pub(super) const MAX_ROUNDS_WITHOUT_SHORT_CALLS: u32 = 8;

/// Maximum CPU time of a chain's function for a short call, in seconds (decision 94). Wake-ups of
/// longer calls cost little, and a trial could gain nothing.
pub(super) const MAX_SHORT_CALL_SECONDS: f64 = 500e-6;
/// The same for a lone function (decision 98). Only its own threads wake each other between calls.
pub(super) const MAX_LONE_CALL_SECONDS: f64 = 200e-6;
/// CPU time of a chain, in processors, above which one processor cannot be enough, although its
/// calls would cost less there (decision 94).
pub(super) const MAX_TRIAL_SHARE: f64 = 2.0;
/// The same for a lone function (decision 98).
pub(super) const MAX_LONE_TRIAL_SHARE: f64 = 1.2;

/// Growth of a function's calls on all processors for which its group gives up its own
/// (decision 94).
pub(super) const MIN_SPREAD_GAIN: f64 = 1.1;
/// Part of its calls that each function must keep on one processor (decision 94): it needs less CPU
/// time for them.
pub(super) const MIN_SHARED_CALLS: f64 = 0.95;
/// Part of the CPU time of its calls that a lone function may need on one processor (decision 98).
/// Some runtimes gain nothing there, and all of them see only one processor.
pub(super) const MAX_LONE_CALL_COST: f64 = 0.9;
/// Calls of a function, a second, below which their number says nothing about a placement.
/// Estimate, not measured.
pub(super) const MIN_COMPARED_CALLS: f64 = 10.0;
/// CPU time of a function, in processors, below which it has no part in a group's load
/// (decision 98).
pub(super) const MIN_COMPARED_SHARE: f64 = 0.02;
