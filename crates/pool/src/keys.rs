//! Whose connections serve whom: the key of each destination of each function, with its epoch. Pure.

use std::collections::BTreeMap;

use nearpath_types::FunctionId;
use nearpath_types::egress::{Egress, Shared, Tls};

use crate::destination::Key;

/// Owners that are remembered while they have no instance.
const REMEMBERED: usize = 4_096;

/// The contents of secrets, by their names.
pub(crate) type Secrets = BTreeMap<String, Vec<u8>>;

/// A [`Key`] without its epoch.
type Place = (String, String, String);

/// What was declared last under each key.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    known: BTreeMap<Place, Declared>,
    last: u64,
}

#[derive(Debug)]
struct Declared {
    egress: Egress,
    secrets: Secrets,
    epoch: u64,
    users: u32,
}

impl Keys {
    /// The key of a destination that one more instance has. As long as its settings and secrets stay as they were, it stays the same.
    pub(crate) fn take(
        &mut self,
        function: &FunctionId,
        chain: Option<&str>,
        egress: &Egress,
        secrets: &Secrets,
    ) -> Key {
        let (owner, to, identity) = place(function, chain, egress);
        self.forget();
        let next = self.last + 1;
        let fresh = || Declared { egress: egress.clone(), secrets: secrets.clone(), epoch: 0, users: 0 };
        let declared = self.known.entry((owner.clone(), to.clone(), identity.clone())).or_insert_with(fresh);
        if declared.epoch == 0 || declared.egress != *egress || declared.secrets != *secrets {
            *declared = Declared { epoch: next, users: declared.users, ..fresh() };
            self.last = next;
        }
        declared.users += 1;
        Key { owner, to, identity, epoch: declared.epoch }
    }

    /// One instance less has it.
    pub(crate) fn give_back(&mut self, key: &Key) {
        let place = (key.owner.clone(), key.to.clone(), key.identity.clone());
        if let Some(declared) = self.known.get_mut(&place) {
            declared.users = declared.users.saturating_sub(1);
        }
    }

    fn forget(&mut self) {
        if self.known.len() >= REMEMBERED {
            self.known.retain(|_, declared| declared.users > 0);
        }
    }
}

fn place(function: &FunctionId, chain: Option<&str>, egress: &Egress) -> Place {
    let user = egress.login.as_ref().map(|login| format!("{}@{}", login.user, login.database.as_deref().unwrap_or("")));
    let mut identity = user.unwrap_or_default();
    if let Tls::Originate { ca } = &egress.tls {
        identity.push_str(&format!(" tls {}", ca.as_deref().unwrap_or("")));
    }
    match (egress.shared, chain) {
        (Shared::Chain, Some(chain)) => {
            identity.push_str(&format!(" {egress}")); // shared by those alone who declare the same
            (format!("{}/{chain}", function.namespace), egress.to(), identity)
        }
        _ => (function.to_string(), egress.to(), identity),
    }
}
