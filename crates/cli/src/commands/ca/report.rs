//! Output of `ca`: JSON for scripts, text for people.

use std::path::PathBuf;
use std::time::SystemTime;

use nearpath_ca::AuthorityFiles;
use nearpath_types::NodeName;
use nearpath_types::status::rfc3339::{self, format_time};
use serde::Serialize;

use crate::output::TextTable;

/// Characters of a fingerprint in a table; enough to tell roots apart.
const SHORT_FINGERPRINT: usize = 16;

/// An authority and its roots.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RootsReport {
    dir: PathBuf,
    trust_domain: String,
    roots: Vec<RootRow>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct RootRow {
    /// SHA-256 of the certificate.
    fingerprint: String,
    #[serde(with = "rfc3339")]
    not_before: SystemTime,
    #[serde(with = "rfc3339")]
    not_after: SystemTime,
    expired: bool,
    /// New certificates are signed by it.
    signs: bool,
}

impl RootsReport {
    pub(super) fn new(files: &AuthorityFiles, now: SystemTime) -> Self {
        let roots = files.roots().iter().enumerate();
        Self {
            dir: files.dir().to_owned(),
            trust_domain: files.trust_domain().to_owned(),
            roots: roots
                .map(|(position, root)| RootRow {
                    fingerprint: root.fingerprint(),
                    not_before: root.not_before,
                    not_after: root.not_after,
                    expired: root.not_after < now,
                    signs: position == 0,
                })
                .collect(),
        }
    }

    pub(super) fn to_text(&self) -> String {
        let mut table = TextTable::new(&["ROOT", "FROM", "UNTIL", "STATE"]);
        for root in &self.roots {
            table.add_row([
                root.fingerprint[..SHORT_FINGERPRINT].to_owned(),
                format_time(root.not_before),
                format_time(root.not_after),
                root.state().to_owned(),
            ]);
        }
        let (domain, dir) = (&self.trust_domain, self.dir.display());
        format!(
            "Authority for {domain} in {dir}\n{table}",
            table = table.render()
        )
    }
}

impl RootRow {
    fn state(&self) -> &'static str {
        match (self.expired, self.signs) {
            (true, true) => "signs, expired: run nearpath ca rotate",
            (true, false) => "expired: run nearpath ca retire",
            (false, true) => "signs",
            (false, false) => "accepted until retired",
        }
    }
}

/// Files of one node.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct IssuedReport {
    node: NodeName,
    folder: PathBuf,
    #[serde(with = "rfc3339")]
    not_after: SystemTime,
}

impl IssuedReport {
    pub(super) fn new(node: &NodeName, folder: PathBuf, not_after: SystemTime) -> Self {
        Self {
            node: node.clone(),
            folder,
            not_after,
        }
    }

    pub(super) fn to_text(&self) -> String {
        let (node, folder) = (&self.node, self.folder.display());
        let end = format_time(self.not_after);
        format!("{node}: {folder}, valid until {end}. Copy this folder to the machine of {node}.\n")
    }
}
