//! Each label of the autoscaler is read as OpenFaaS writes it, and a wrong one says what to write.

use proptest::prelude::*;

use super::*;

fn read(labels: &[(&str, &str)]) -> Result<ScaleSettings, String> {
    let labels = labels
        .iter()
        .map(|(key, value)| (key.to_string(), value.to_string()))
        .collect();
    ScaleSettings::from_labels(&labels).map_err(|error| error.to_string())
}

#[test]
fn no_labels_mean_the_defaults() {
    let settings = read(&[]).unwrap();
    assert_eq!(settings, ScaleSettings::default());
    assert_eq!((settings.min_replicas, settings.max_replicas), (1, 20));
    assert_eq!(
        (settings.target.get(), settings.target_permille),
        (50, 900),
        "target and proportion of OpenFaaS"
    );
    assert_eq!(settings.zero_duration, Duration::from_secs(900));
    assert!(!settings.scale_to_zero);
}

#[test]
fn only_labels_of_the_autoscaler_request_one() {
    let is_autoscaled = |labels: &[(&str, &str)]| {
        let labels = labels
            .iter()
            .map(|(key, value)| (key.to_string(), value.to_string()))
            .collect();
        ScaleSettings::for_autoscaling(&labels).is_some()
    };
    for labels in [
        &[(SCALE_TYPE, "rps")][..],
        &[(SCALE_TARGET, "10")],
        &[(SCALE_ZERO, "true")],
        &[(SCALE_ZERO, "true"), (SCALE_MIN, "2"), (SCALE_MAX, "2")],
    ] {
        assert!(is_autoscaled(labels), "{labels:?}");
    }
    for labels in [
        &[][..],
        &[(SCALE_MIN, "2"), (SCALE_MAX, "40")],
        &[(SCALE_ZERO, "false"), (SCALE_ZERO_DURATION, "5m")],
        &[(SCALE_TYPE, "rps"), (SCALE_MIN, "2"), (SCALE_MAX, "2")],
        &[(SCALE_TYPE, "queue"), (SCALE_ZERO, "true")],
        &[(SCALE_TYPE, "rps"), (SCALE_TARGET, "none")],
    ] {
        assert!(!is_autoscaled(labels), "{labels:?}");
    }
}

#[test]
fn every_label_is_read() {
    let settings = read(&[
        (SCALE_MIN, "2"),
        (SCALE_MAX, "40"),
        (SCALE_ZERO, "true"),
        (SCALE_ZERO_DURATION, "10m30s"),
        (SCALE_TYPE, "capacity"),
        (SCALE_TARGET, "5"),
        (SCALE_TARGET_PROPORTION, "0.7"),
        (SCALE_DOWN_WINDOW, "5m"),
    ]);
    assert_eq!(
        settings,
        Ok(ScaleSettings {
            min_replicas: 2,
            max_replicas: 40,
            scale_to_zero: true,
            zero_duration: Duration::from_secs(630),
            metric: ScaleMetric::Capacity,
            target: NonZeroU32::new(5).unwrap(),
            target_permille: 700,
            down_window: Duration::from_secs(300),
        })
    );
    assert_eq!(
        read(&[(SCALE_DOWN_WINDOW, "0s")]).unwrap().down_window,
        Duration::ZERO
    );
}

#[test]
fn types_are_written_as_they_are_read() {
    for name in ["rps", "capacity", "cpu", "queue"] {
        assert_eq!(name.parse::<ScaleMetric>().unwrap().to_string(), name);
    }
}

#[test]
fn proportions_are_thousandths() {
    let permille = |text| read(&[(SCALE_TARGET_PROPORTION, text)]).map(|all| all.target_permille);
    for (text, expected) in [
        ("0.90", 900),
        ("1.0", 1_000),
        ("1", 1_000),
        (".5", 500),
        ("0.12345", 123),
        (" 0.001 ", 1),
    ] {
        assert_eq!(permille(text), Ok(expected), "{text}");
    }
    for wrong in [
        "", ".", "0", "0.0001", "1.001", "90", "90%", "-0.5", "+0.5", "NaN", "inf", "1e-1",
        "0.9.1", "4294968",
    ] {
        assert!(permille(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn an_invalid_label_says_what_to_write() {
    for (key, value, error) in [
        (SCALE_MIN, "few", "\"few\" is not a whole number"),
        (
            SCALE_MIN,
            "21",
            "21 is more than com.openfaas.scale.max, 20",
        ),
        (
            SCALE_ZERO,
            "yes",
            "invalid value \"yes\": expected true or false",
        ),
        (
            SCALE_ZERO_DURATION,
            "0s",
            "invalid duration \"0s\": expected more than 0, such as 15m",
        ),
        (
            SCALE_ZERO_DURATION,
            "soon",
            "invalid duration \"soon\": write seconds (`30`) or a number with a unit (`250ms`, `30s`, `1m30s`, `2h`)",
        ),
        (
            SCALE_TYPE,
            "memory",
            "invalid type \"memory\": expected rps, capacity, cpu or queue",
        ),
        (
            SCALE_TARGET,
            "0",
            "invalid target \"0\": expected a whole number, at least 1",
        ),
        (
            SCALE_TARGET_PROPORTION,
            "NaN",
            "invalid proportion \"NaN\": expected a decimal number from 0.001 to 1, such as 0.90",
        ),
        (
            SCALE_DOWN_WINDOW,
            "10m",
            "invalid window \"10m\": expected at most 5m, or 0s for none",
        ),
    ] {
        assert_eq!(read(&[(key, value)]), Err(format!("{key}: {error}")));
    }
}

proptest! {
    #[test]
    fn any_text_is_answered(text in ".{0,60}") {
        for key in [SCALE_ZERO, SCALE_ZERO_DURATION, SCALE_TYPE, SCALE_TARGET, SCALE_TARGET_PROPORTION, SCALE_DOWN_WINDOW] {
            if let Ok(settings) = read(&[(key, &text)]) {
                prop_assert!((1..=1_000).contains(&settings.target_permille));
                prop_assert!(!settings.zero_duration.is_zero() && settings.down_window <= MAX_DOWN_WINDOW);
            }
        }
    }
}
