//! The isolation that instances will have on this machine.

use nearpath_kernel::sandbox::IsolationLevel;

use crate::error::StartError;
use crate::settings::{ForwardMode, ServerSettings};

/// Chooses the best isolation available. Must run while the process has one thread.
///
/// # Errors
/// When there is none, or when a setting needs more.
pub(crate) fn set_up(settings: &ServerSettings) -> Result<IsolationLevel, StartError> {
    let isolation = if settings.sandbox {
        best_available()?
    } else {
        IsolationLevel::None
    };
    // Checked here, where the isolation is known, and before anything is created.
    match settings.forward == ForwardMode::Tc && isolation != IsolationLevel::Root {
        true => Err(StartError::ForwardNeedsRoot),
        false => Ok(isolation),
    }
}

fn best_available() -> Result<IsolationLevel, StartError> {
    if nearpath_kernel::probe::best_isolation() == IsolationLevel::Root {
        return Ok(IsolationLevel::Root);
    }
    // Without root the whole process becomes root of a user namespace; the kernel refuses that to
    // processes with several threads.
    nearpath_kernel::sandbox::enter_user_namespace().map_err(StartError::NoIsolation)?;
    Ok(IsolationLevel::UserNamespace)
}
