//! Settings of the autoscaler, in OpenFaaS's labels.
//!
//! The labels, their meaning and their defaults are those of OpenFaaS Pro
//! (<https://docs.openfaas.com/architecture/autoscaling>). The default of
//! [`SCALE_DOWN_WINDOW`] differs: OpenFaaS has none.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::time::Duration;

use super::keys::{
    SCALE_DOWN_WINDOW, SCALE_MAX, SCALE_MIN, SCALE_TARGET, SCALE_TARGET_PROPORTION, SCALE_TYPE,
    SCALE_ZERO, SCALE_ZERO_DURATION,
};
use super::{InvalidSetting, setting::SettingText};
use crate::duration::parse_duration;

/// Largest accepted [`ScaleSettings::down_window`], as in OpenFaaS.
pub const MAX_DOWN_WINDOW: Duration = Duration::from_secs(300);
/// Longest part of a value that an error repeats, in characters.
const MAX_VALUE_CHARS: usize = 40;

/// Measured load by which the autoscaler chooses the number of replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ScaleMetric {
    /// `rps`: requests per second.
    #[default]
    Rps,
    /// `capacity`: requests in flight.
    Capacity,
    /// `cpu`: CPU time, in thousandths of a core.
    Cpu,
    /// `queue`: messages without a result.
    Queue,
}

impl FromStr for ScaleMetric {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim() {
            "rps" => Ok(Self::Rps),
            "capacity" => Ok(Self::Capacity),
            "cpu" => Ok(Self::Cpu),
            "queue" => Ok(Self::Queue),
            _ => Err(format!(
                "invalid type {:?}: expected rps, capacity, cpu or queue",
                shorten(text)
            )),
        }
    }
}

impl fmt::Display for ScaleMetric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rps => "rps",
            Self::Capacity => "capacity",
            Self::Cpu => "cpu",
            Self::Queue => "queue",
        })
    }
}

/// Autoscaling of one function. Every value is a whole number, so that settings can be compared and
/// no calculation meets a NaN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScaleSettings {
    /// Fewest replicas while the function is not scaled to zero, at least 1.
    pub min_replicas: u32,
    /// Maximum number of replicas, at least `min_replicas`.
    pub max_replicas: u32,
    /// Scales a function without traffic to zero.
    pub scale_to_zero: bool,
    /// Time without traffic after which the function is scaled to zero.
    pub zero_duration: Duration,
    /// Load that is measured.
    pub metric: ScaleMetric,
    /// Load per replica: requests per second, requests, thousandths of a core or messages.
    pub target: NonZeroU32,
    /// Part of `target` to which replicas are loaded, in thousandths, from 1 to 1000.
    pub target_permille: u16,
    /// Time for which the largest number of replicas that was wanted is kept; 0 for none.
    pub down_window: Duration,
}

impl Default for ScaleSettings {
    fn default() -> Self {
        Self {
            min_replicas: 1,
            max_replicas: 20,
            scale_to_zero: false,
            zero_duration: Duration::from_secs(15 * 60),
            metric: ScaleMetric::Rps,
            target: const { NonZeroU32::new(50).unwrap() },
            target_permille: 900,
            // Without one, noise around a multiple of the target starts and stops replicas:
            // decision 109 has the measurement.
            down_window: Duration::from_secs(60),
        }
    }
}

impl ScaleSettings {
    /// Returns the settings of a function that an autoscaler scales, or `None` if its replicas stay
    /// as they are.
    ///
    /// Bounds alone are no request for an autoscaler: deployments had them before there was one. A
    /// queue is none either, because this gateway has no queue of messages.
    pub fn for_autoscaling(labels: &BTreeMap<String, String>) -> Option<Self> {
        let settings = Self::from_labels(labels).ok()?;
        let is_requested = settings.scale_to_zero
            || [SCALE_TYPE, SCALE_TARGET]
                .iter()
                .any(|key| labels.contains_key(*key));
        let can_change = settings.scale_to_zero || settings.max_replicas > settings.min_replicas;
        let is_measured = settings.metric != ScaleMetric::Queue;
        (is_requested && can_change && is_measured).then_some(settings)
    }

    /// Reads the settings from a function's labels. Fails on the first invalid one, and names the
    /// label, its value, and what is expected.
    pub fn from_labels(labels: &BTreeMap<String, String>) -> Result<Self, InvalidSetting> {
        let default = Self::default();
        let label = |key| SettingText {
            key,
            text: labels.get(key),
        };
        let (min_replicas, max_replicas) = read_bounds(label(SCALE_MIN), label(SCALE_MAX))?;
        Ok(Self {
            min_replicas,
            max_replicas,
            scale_to_zero: label(SCALE_ZERO)
                .read_with(parse_switch)?
                .unwrap_or(default.scale_to_zero),
            zero_duration: label(SCALE_ZERO_DURATION)
                .read_with(parse_zero_duration)?
                .unwrap_or(default.zero_duration),
            metric: label(SCALE_TYPE).read_or_default()?,
            target: label(SCALE_TARGET)
                .read_with(parse_target)?
                .unwrap_or(default.target),
            target_permille: label(SCALE_TARGET_PROPORTION)
                .read_with(parse_proportion)?
                .unwrap_or(default.target_permille),
            down_window: label(SCALE_DOWN_WINDOW)
                .read_with(parse_down_window)?
                .unwrap_or(default.down_window),
        })
    }
}

/// Reads the smallest and the largest number of replicas, both at least 1.
fn read_bounds(min: SettingText<'_>, max: SettingText<'_>) -> Result<(u32, u32), InvalidSetting> {
    let default = ScaleSettings::default();
    let (key, max_key) = (min.key, max.key);
    // 0 replicas is the state of a sleeping function, not a setting.
    let (min, max) = (
        min.read_number(default.min_replicas)?.max(1),
        max.read_number(default.max_replicas)?.max(1),
    );
    match min > max {
        true => Err(InvalidSetting {
            key,
            why: format!("{min} is more than {max_key}, {max}"),
        }),
        false => Ok((min, max)),
    }
}

fn parse_switch(text: &str) -> Result<bool, String> {
    text.trim()
        .parse()
        .map_err(|_| format!("invalid value {:?}: expected true or false", shorten(text)))
}

fn parse_zero_duration(text: &str) -> Result<Duration, String> {
    let duration = parse_duration(text).map_err(|error| error.to_string())?;
    // With none, a function would lose its replicas between any two requests.
    match duration.is_zero() {
        true => Err(format!(
            "invalid duration {:?}: expected more than 0, such as 15m",
            shorten(text)
        )),
        false => Ok(duration),
    }
}

fn parse_target(text: &str) -> Result<NonZeroU32, String> {
    text.trim().parse().map_err(|_| {
        format!(
            "invalid target {:?}: expected a whole number, at least 1",
            shorten(text)
        )
    })
}

/// Parses a proportion into thousandths. Decimals are read as digits, because a float would have
/// values that are no number.
fn parse_proportion(text: &str) -> Result<u16, String> {
    proportion_permille(text.trim()).ok_or_else(|| {
        format!(
            "invalid proportion {:?}: expected a decimal number from 0.001 to 1, such as 0.90",
            shorten(text)
        )
    })
}

fn proportion_permille(text: &str) -> Option<u16> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
    let are_digits = [whole, decimals]
        .iter()
        .all(|part| part.bytes().all(|byte| byte.is_ascii_digit()));
    if !are_digits || whole.len() + decimals.len() == 0 || whole.len() > 3 {
        return None;
    }
    // Further digits change a number of replicas by less than one in a thousand.
    let decimals: String = decimals.chars().chain("000".chars()).take(3).collect();
    let whole: u32 = format!("0{whole}").parse().ok()?;
    let permille = whole * 1_000 + decimals.parse::<u32>().ok()?;
    u16::try_from(permille)
        .ok()
        .filter(|permille| (1..=1_000).contains(permille))
}

fn parse_down_window(text: &str) -> Result<Duration, String> {
    let window = parse_duration(text).map_err(|error| error.to_string())?;
    match window > MAX_DOWN_WINDOW {
        true => Err(format!(
            "invalid window {:?}: expected at most 5m, or 0s for none",
            shorten(text)
        )),
        false => Ok(window),
    }
}

/// Shortens a value for an error text.
fn shorten(text: &str) -> String {
    text.chars().take(MAX_VALUE_CHARS).collect()
}
