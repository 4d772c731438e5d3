//! What applications need of this machine: Python, and packages that pip brings.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::remote::Error;

/// Puts an example's packages into a folder of the build, as its tests do, and says where; see examples/testing/need.py.
const PACKAGES: &str = "import sys\nsys.path.insert(0, '.')\nfrom testing import need\nprint(sys.executable)\nprint(need.packages(sys.argv[1]))";

/// Something that this machine lacks, and what was said about it.
#[derive(Debug)]
pub(crate) struct Missing(pub(crate) String);

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Missing {}

/// A Python with the packages of one example.
pub(crate) struct Python {
    program: PathBuf,
    packages: PathBuf,
}

impl Python {
    /// Installs what is not there yet.
    ///
    /// # Errors
    /// [`Missing`] without Python, without pip, or when a package cannot be had.
    pub(crate) fn with_packages(example: &str) -> Result<Self, Error> {
        let mut command = Command::new("python3");
        command
            .args(["-c", PACKAGES, example])
            .current_dir(examples()?)
            .stdin(Stdio::null());
        command
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env_remove("NEARPATH_SKIP_LOG"); // a skip is the comparison's to tell
        let done = command
            .output()
            .map_err(|error| Missing(format!("python3 cannot be started: {error}")))?;
        let text = String::from_utf8_lossy(&done.stdout).into_owned();
        match text.lines().collect::<Vec<_>>()[..] {
            [program, packages] if done.status.success() => Ok(Self {
                program: program.into(),
                packages: packages.into(),
            }),
            _ => Err(Missing(reason(&String::from_utf8_lossy(&done.stderr))).into()),
        }
    }

    /// The folder of the packages.
    pub(crate) fn packages(&self) -> &Path {
        &self.packages
    }

    /// Runs a script, as a watchdog is told to; who starts it takes it along when it ends.
    pub(super) fn command(&self, script: &Path) -> String {
        format!(
            "setpriv --pdeathsig KILL '{}' '{}'",
            self.program.display(),
            script.display()
        )
    }

    /// A script with arguments.
    pub(crate) fn run(&self, script: &Path) -> Command {
        let mut command = Command::new(&self.program);
        command
            .arg(script)
            .envs(self.variables())
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        command
    }

    /// What makes it find its packages, and leave nothing in the folders of the examples.
    pub(super) fn variables(&self) -> impl Iterator<Item = (String, String)> + use<> {
        let variables = [
            ("PYTHONPATH", self.packages.display().to_string()),
            ("PYTHONDONTWRITEBYTECODE", "1".to_owned()),
        ];
        variables
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
    }
}

/// The folder of the examples.
pub(super) fn examples() -> Result<PathBuf, Error> {
    let folder = Path::new("examples").canonicalize();
    folder.map_err(|error| {
        format!("examples: {error}: run this from the root of the repository").into()
    })
}

/// What a skip said, else the last line.
fn reason(text: &str) -> String {
    let mut lines = text.lines().filter(|line| !line.trim().is_empty());
    let skip = text.lines().find_map(|line| line.strip_prefix("SKIP "));
    skip.or_else(|| lines.next_back())
        .unwrap_or("python3 says nothing")
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn why_something_is_missing_is_found_in_what_was_printed() {
        let skip = "SKIP examples/retail: no matching distribution\nTraceback …\nunittest.case.SkipTest: no\n";
        assert_eq!(reason(skip), "examples/retail: no matching distribution");
        assert_eq!(
            reason("Traceback …\nModuleNotFoundError: no pip\n\n"),
            "ModuleNotFoundError: no pip"
        );
        assert_eq!(reason(""), "python3 says nothing");
    }
}
