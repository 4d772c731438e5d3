//! Reads the Rust files that git tracks.

use std::process::Command;

use super::scan::Scan;

/// Folders whose code is not ours to name.
const SKIPPED: [&str; 1] = ["target/"];

/// Every definition and comment of the tree.
pub(super) fn scan_tree() -> Result<Scan, String> {
    let mut scan = Scan::default();
    for path in tracked_files()? {
        let text = std::fs::read_to_string(&path).map_err(|e| format!("{path}: {e}"))?;
        scan.add_file(&path, &text)?;
    }
    Ok(scan)
}

fn tracked_files() -> Result<Vec<String>, String> {
    // Tracked files only: build output and scratch files are not checked.
    let out = Command::new("git")
        .args(["ls-files", "*.rs"])
        .output()
        .map_err(|e| format!("git ls-files: {e}"))?;
    if !out.status.success() {
        return Err(format!(
            "git ls-files: {}",
            String::from_utf8_lossy(&out.stderr).trim()
        ));
    }
    let text = String::from_utf8_lossy(&out.stdout);
    let ours = |path: &&str| {
        !SKIPPED.iter().any(|skipped| path.contains(skipped)) && std::path::Path::new(path).exists()
    };
    Ok(text.lines().filter(ours).map(str::to_owned).collect())
}
