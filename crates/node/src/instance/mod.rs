//! One instance, from its launch to its last trace: [`life::Life`] walks it through, [`notes`] hears how its start goes,
//! [`variables`] makes its environment, [`chain`] what a chain adds to it, [`ending::Ending`] tells the tenant why it is gone.

pub mod chain;
pub mod ending;
pub mod life;
pub mod notes;
pub mod variables;
