//! Load that a number of arrivals explains.

/// Load and arrival rate of a time in which replicas kept up, both in thousandths.
///
/// Their ratio is the time that a request is open (Little's law). A backlog of requests or
/// messages grows while replicas start. A number of replicas that followed it would grow for as
/// long as a start takes. The arrival rate does not depend on replicas, so the load that it explains is
/// the one that replicas are started for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ArrivalBasis {
    load: u64,
    rate: u64,
}

impl ArrivalBasis {
    /// Returns `None` where the values are not known, or say nothing about a request.
    pub(super) fn new(load: Option<u64>, rate: Option<u64>) -> Option<Self> {
        let (load, rate) = (load?, rate?);
        (load > 0 && rate > 0).then_some(Self { load, rate })
    }

    /// Returns the load that this arrival rate would be without a backlog.
    pub(super) fn explained_load(&self, rate: u64) -> u64 {
        let load = u128::from(self.load) * u128::from(rate) / u128::from(self.rate.max(1));
        u64::try_from(load).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_explained_load_grows_with_the_arrivals() {
        let basis = ArrivalBasis::new(Some(1_000), Some(10_000)).unwrap();
        assert_eq!(basis.explained_load(10_000), 1_000);
        assert_eq!(basis.explained_load(1_000_000), 100_000);
        assert_eq!(basis.explained_load(0), 0);
        let steep = ArrivalBasis::new(Some(u64::MAX), Some(1)).unwrap();
        assert_eq!(steep.explained_load(u64::MAX), u64::MAX);
    }

    #[test]
    fn an_idle_function_explains_nothing() {
        for (load, rate) in [
            (None, Some(1)),
            (Some(1), None),
            (Some(0), Some(1)),
            (Some(1), Some(0)),
        ] {
            assert_eq!(ArrivalBasis::new(load, rate), None);
        }
    }
}
