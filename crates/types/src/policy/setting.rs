//! Setting as the tenant wrote it, and its parsing.

use std::str::FromStr;
use std::time::Duration;

use crate::duration;

use super::InvalidSetting;

/// Key, and its value if there is one.
pub(super) struct SettingText<'a> {
    pub(super) key: &'static str,
    pub(super) text: Option<&'a String>,
}

impl SettingText<'_> {
    pub(super) fn read_with<T, E: ToString>(
        &self,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Result<Option<T>, InvalidSetting> {
        // An absent setting is no fault: the default applies.
        let Some(text) = self.text else {
            return Ok(None);
        };
        parse(text).map(Some).map_err(|error| InvalidSetting {
            key: self.key,
            why: error.to_string(),
        })
    }

    pub(super) fn read_or_default<T>(&self) -> Result<T, InvalidSetting>
    where
        T: FromStr + Default,
        T::Err: ToString,
    {
        Ok(self.read_with(str::parse)?.unwrap_or_default())
    }

    pub(super) fn read_number<T: FromStr>(&self, default: T) -> Result<T, InvalidSetting> {
        let whole = |text: &str| {
            text.trim()
                .parse()
                .map_err(|_| format!("{text:?} is not a whole number"))
        };
        Ok(self.read_with(whole)?.unwrap_or(default))
    }

    pub(super) fn read_duration(&self, default: Duration) -> Result<Duration, InvalidSetting> {
        Ok(self.read_with(duration::parse_duration)?.unwrap_or(default))
    }
}
