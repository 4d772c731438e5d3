//! Requirements of the applications: Python, and packages that pip installs.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::remote::BenchError;

/// Script that installs an example's packages into a build folder and prints the folder; see
/// examples/testing/need.py.
const PACKAGES_SCRIPT: &str = "import sys\nsys.path.insert(0, '.')\nfrom testing import need\nprint(sys.executable)\nprint(need.packages(sys.argv[1]))";

/// A missing dependency, with the output about it.
#[derive(Debug)]
pub(crate) struct MissingRequirement(pub(crate) String);

impl fmt::Display for MissingRequirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for MissingRequirement {}

/// Python with the packages of one example.
pub(crate) struct PythonEnv {
    program: PathBuf,
    packages: PathBuf,
}

impl PythonEnv {
    /// Installs missing packages.
    ///
    /// # Errors
    /// [`MissingRequirement`] without Python or pip, or when a package is not available.
    pub(crate) fn with_packages(example: &str) -> Result<Self, BenchError> {
        let mut command = Command::new("python3");
        command
            .args(["-c", PACKAGES_SCRIPT, example])
            .current_dir(examples_folder()?)
            .stdin(Stdio::null());
        command
            .env("PYTHONDONTWRITEBYTECODE", "1")
            // The example's test helper would count a skip of its own there.
            .env_remove("NEARPATH_SKIP_LOG"); // the comparison reports skips
        let done = command
            .output()
            .map_err(|error| MissingRequirement(format!("cannot start python3: {error}")))?;
        let text = String::from_utf8_lossy(&done.stdout).into_owned();
        match text.lines().collect::<Vec<_>>()[..] {
            // Exactly the two lines that the script prints; anything else is an error's text.
            [program, packages] if done.status.success() => Ok(Self {
                program: program.into(),
                packages: packages.into(),
            }),
            _ => {
                Err(MissingRequirement(skip_reason(&String::from_utf8_lossy(&done.stderr))).into())
            }
        }
    }

    /// Returns the folder of the packages.
    pub(crate) fn packages_folder(&self) -> &Path {
        &self.packages
    }

    /// Returns the command line of a script for a watchdog; the script ends with its parent.
    pub(super) fn command_line(&self, script: &Path) -> String {
        format!(
            "setpriv --pdeathsig KILL '{}' '{}'",
            self.program.display(),
            script.display()
        )
    }

    /// Returns a command that runs a script with this Python.
    pub(crate) fn script_command(&self, script: &Path) -> Command {
        let mut command = Command::new(&self.program);
        command
            .arg(script)
            .envs(self.env_variables())
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        command
    }

    /// Returns variables that point Python to the packages and keep bytecode out of the examples.
    pub(super) fn env_variables(&self) -> impl Iterator<Item = (String, String)> + use<> {
        let variables = [
            ("PYTHONPATH", self.packages.display().to_string()),
            ("PYTHONDONTWRITEBYTECODE", "1".to_owned()),
        ];
        variables
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
    }
}

/// Returns the folder of the examples.
pub(super) fn examples_folder() -> Result<PathBuf, BenchError> {
    let folder = Path::new("examples").canonicalize();
    folder.map_err(|error| {
        format!("examples: {error}: run this from the root of the repository").into()
    })
}

/// Returns the reason after `SKIP`, else the last line.
fn skip_reason(text: &str) -> String {
    let mut lines = text.lines().filter(|line| !line.trim().is_empty());
    let skip = text.lines().find_map(|line| line.strip_prefix("SKIP "));
    skip.or_else(|| lines.next_back())
        .unwrap_or("python3 printed nothing")
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_of_a_missing_dependency_is_found_in_the_output() {
        let skip = "SKIP examples/retail: no matching distribution\nTraceback …\nunittest.case.SkipTest: no\n";
        assert_eq!(
            skip_reason(skip),
            "examples/retail: no matching distribution"
        );
        assert_eq!(
            skip_reason("Traceback …\nModuleNotFoundError: no pip\n\n"),
            "ModuleNotFoundError: no pip"
        );
        assert_eq!(skip_reason(""), "python3 printed nothing");
    }
}
