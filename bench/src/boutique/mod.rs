//! The users of `examples/boutique`: who asks for what, how often, in which order.
//!
//! [`customer`] decides and knows no socket; [`visit`] makes the requests and checks the answers, [`rush`] makes as
//! many as there can be; [`report`] prints.

pub(crate) mod customer;
pub(crate) mod dice;
pub(crate) mod report;
pub(crate) mod rush;
pub(crate) mod visit;

/// The six kinds of request, by the page that they ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Index,
    SetCurrency,
    Product,
    AddToCart,
    ViewCart,
    Checkout,
}

impl Kind {
    pub(crate) const ALL: [Self; 6] = [
        Self::Index,
        Self::SetCurrency,
        Self::Product,
        Self::AddToCart,
        Self::ViewCart,
        Self::Checkout,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Index => "index",
            Self::SetCurrency => "setCurrency",
            Self::Product => "product",
            Self::AddToCart => "addToCart",
            Self::ViewCart => "viewCart",
            Self::Checkout => "checkout",
        }
    }

    /// What every right answer of this kind holds: an answer is more than its status.
    pub(crate) fn mark(self) -> &'static str {
        match self {
            Self::Index => "\"products\"",
            Self::SetCurrency => "\"currency\"",
            Self::Product => "\"recommendations\"",
            Self::AddToCart | Self::ViewCart => "\"items\"",
            Self::Checkout => "\"orderId\"",
        }
    }
}
