//! Output of the measurements, as a table or as JSON.

use std::time::Duration;

use serde::Serialize;

use crate::traffic::{BulkTransfer, PingTimes};

/// Measurements at one delay.
#[derive(Serialize)]
pub(crate) struct MeasuredRow {
    delay_us: f64,
    /// Excess of the one-way time over the delay.
    error_p50_us: f64,
    error_p99_us: f64,
    rtt_p50_us: f64,
    rtt_p99_us: f64,
    lost: u32,
    gbit_per_s: f64,
    /// CPU time of the link's thread for a packet of the transfer.
    cpu_us_per_packet: f64,
    octets_per_packet: f64,
    /// Share of a processor that the link's thread used.
    cpu_share: f64,
    /// Packets that the link's thread fetched too late.
    overrun: u64,
}

impl MeasuredRow {
    #[expect(clippy::cast_precision_loss, reason = "figures for people")]
    pub(crate) fn new(delay: Duration, pings: PingTimes, bulk: BulkTransfer) -> Self {
        let packets = bulk.packets.max(1) as f64;
        let received = u32::try_from(pings.round_trip.len()).unwrap_or(u32::MAX);
        Self {
            delay_us: format_microseconds(delay),
            error_p50_us: quantile(&pings.one_way, 0.5) - format_microseconds(delay),
            error_p99_us: quantile(&pings.one_way, 0.99) - format_microseconds(delay),
            rtt_p50_us: quantile(&pings.round_trip, 0.5),
            rtt_p99_us: quantile(&pings.round_trip, 0.99),
            lost: pings.sent.saturating_sub(received),
            gbit_per_s: bulk.octets as f64 * 8e-9 / bulk.took.as_secs_f64(),
            cpu_us_per_packet: format_microseconds(bulk.cpu) / packets,
            octets_per_packet: bulk.octets as f64 / packets,
            cpu_share: bulk.cpu.as_secs_f64() / bulk.took.as_secs_f64(),
            overrun: bulk.overrun,
        }
    }
}

pub(crate) fn print_table(rows: &[MeasuredRow], json: bool) {
    if json {
        for row in rows {
            println!(
                "{}",
                serde_json::to_string(row).expect("numbers can be written")
            );
        }
        return;
    }
    println!(
        "delay µs   error p50    p99 µs     rtt p50    p99 µs    lost    Gbit/s   CPU µs/packet   octets/packet    CPU   overrun"
    );
    for r in rows {
        println!(
            "{:8.0} {:11.1} {:9.1} {:11.1} {:9.1} {:7} {:9.2} {:15.2} {:15.0} {:4.0} % {:9}",
            r.delay_us,
            r.error_p50_us,
            r.error_p99_us,
            r.rtt_p50_us,
            r.rtt_p99_us,
            r.lost,
            r.gbit_per_s,
            r.cpu_us_per_packet,
            r.octets_per_packet,
            r.cpu_share * 100.0,
            r.overrun
        );
    }
}

fn format_microseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "an index"
)]
fn quantile(sorted: &[Duration], share: f64) -> f64 {
    let place = (sorted.len().saturating_sub(1) as f64 * share) as usize;
    sorted
        .get(place)
        .map_or(f64::NAN, |&time| format_microseconds(time))
}
