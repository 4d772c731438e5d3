//! Text formats of metrics, and the choice between them.
//!
//! The libraries encode OpenMetrics 1.0. Clients that do not ask for it get the Prometheus text
//! format 0.0.4, which every scraper and `promtool check metrics` read.

/// A text format of metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricsFormat {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// The Prometheus text format 0.0.4.
    Prometheus,
}

impl MetricsFormat {
    /// Chooses the format by an `Accept` field.
    pub fn negotiate(accept: Option<&[u8]>) -> Self {
        let accept = String::from_utf8_lossy(accept.unwrap_or_default()).to_ascii_lowercase();
        let refused = |range: &str| range.replace(' ', "").ends_with(";q=0");
        let wants_openmetrics = accept.split(',').any(|range| {
            range.trim().starts_with("application/openmetrics-text") && !refused(range)
        });
        match wants_openmetrics {
            true => Self::OpenMetrics,
            false => Self::Prometheus,
        }
    }

    /// Value of `Content-Type`.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// Converts metrics in OpenMetrics 1.0 to this format.
    pub fn convert(self, openmetrics: String) -> String {
        match self {
            Self::OpenMetrics => openmetrics,
            Self::Prometheus => to_prometheus(&openmetrics),
        }
    }
}

/// Rewrites each family. Samples of counters end in `_total` in both formats, but only OpenMetrics
/// leaves the suffix out of the family's name.
fn to_prometheus(openmetrics: &str) -> String {
    let mut text = String::with_capacity(openmetrics.len());
    let mut help: Option<(&str, &str)> = None;
    for line in openmetrics.lines() {
        match line.strip_prefix("# ").map(split_comment) {
            // Kept until the type is known, which decides the name.
            Some(("HELP", name, rest)) => help = Some((name, rest)),
            Some(("TYPE", name, kind)) => write_family(&mut text, name, kind, help.take()),
            // `UNIT` and `EOF` do not exist in 0.0.4.
            Some(_) => {}
            // No metric has exemplars, the only part of a sample that 0.0.4 lacks.
            None => text.extend([line, "\n"]),
        }
    }
    text
}

/// Splits `KEYWORD NAME REST`.
fn split_comment(comment: &str) -> (&str, &str, &str) {
    let mut parts = comment.splitn(3, ' ');
    let mut next = || parts.next().unwrap_or_default();
    (next(), next(), next())
}

fn write_family(text: &mut String, name: &str, kind: &str, help: Option<(&str, &str)>) {
    let (suffix, kind) = match kind {
        "counter" => ("_total", "counter"),
        "info" => ("_info", "gauge"),
        "stateset" => ("", "gauge"),
        "unknown" => ("", "untyped"),
        kind => ("", kind),
    };
    if let Some((_, help)) = help.filter(|(of, _)| *of == name) {
        text.extend(["# HELP ", name, suffix, " ", help, "\n"]);
    }
    text.extend(["# TYPE ", name, suffix, " ", kind, "\n"]);
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPENMETRICS: &str = "# HELP calls Calls.\n# TYPE calls counter\ncalls_total{code=\"a } # b\"} 1\n\
        # HELP wait_seconds Waits.\n# TYPE wait_seconds histogram\n# UNIT wait_seconds seconds\n\
        wait_seconds_bucket{le=\"1.0\"} 2\nwait_seconds_sum 3\n\
        # HELP build Build.\n# TYPE build info\nbuild_info{version=\"1\"} 1\n# EOF\n";

    #[test]
    fn counters_keep_their_suffix_and_additions_are_left_out() {
        let expected = "# HELP calls_total Calls.\n# TYPE calls_total counter\ncalls_total{code=\"a } # b\"} 1\n\
            # HELP wait_seconds Waits.\n# TYPE wait_seconds histogram\n\
            wait_seconds_bucket{le=\"1.0\"} 2\nwait_seconds_sum 3\n\
            # HELP build_info Build.\n# TYPE build_info gauge\nbuild_info{version=\"1\"} 1\n";
        assert_eq!(
            MetricsFormat::Prometheus.convert(OPENMETRICS.to_owned()),
            expected
        );
        assert_eq!(
            MetricsFormat::OpenMetrics.convert(OPENMETRICS.to_owned()),
            OPENMETRICS
        );
    }

    #[test]
    fn openmetrics_is_for_clients_that_ask_for_it() {
        let negotiate = |accept: &str| MetricsFormat::negotiate(Some(accept.as_bytes()));
        for accept in [
            "",
            "*/*",
            "text/plain",
            "application/openmetrics-text; q=0, text/plain",
        ] {
            assert_eq!(negotiate(accept), MetricsFormat::Prometheus, "{accept}");
        }
        assert_eq!(MetricsFormat::negotiate(None), MetricsFormat::Prometheus);
        // As Prometheus 2 and 3 send it.
        let prometheus = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        assert_eq!(negotiate(prometheus), MetricsFormat::OpenMetrics);
    }
}
