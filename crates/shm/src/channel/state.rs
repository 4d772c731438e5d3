//! State of a channel.

/// State of a channel; it only ever increases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum ChannelState {
    /// Accepts new calls.
    Open = 0,
    /// Accepts no new calls; open calls finish.
    Withdrawn = 1,
    /// The caller is dead: no new calls arrive.
    CallerDead = 2,
    /// The callee is dead: no answers arrive.
    CalleeDead = 3,
    /// An endpoint violated the protocol.
    Broken = 4,
}

impl ChannelState {
    pub(super) fn from_number(number: u32) -> Self {
        match number {
            0 => Self::Open,
            1 => Self::Withdrawn,
            2 => Self::CallerDead,
            3 => Self::CalleeDead,
            _ => Self::Broken,
        }
    }
}
