//! Where the clients are that tests drive; `tests/clients/install` has their versions.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

/// Where the scripts and charts are.
pub(crate) fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients")
}

/// Where the clients are; installs those that are missing. Fails with the installer's sentence where one cannot be had.
pub(crate) fn installed() -> &'static Path {
    static INSTALLED: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let installed = INSTALLED.get_or_init(|| {
        let target = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .parent()
            .expect("it is a folder of the target directory");
        let clients = target.join("clients");
        let output = Command::new("python3")
            .arg(sources().join("install"))
            .arg(&clients)
            .output()
            .map_err(|error| format!("the clients under test are installed with python3, which cannot be run ({error}): put Python 3.10 or later on PATH"))?;
        if output.status.success() {
            Ok(clients)
        } else {
            let said = [output.stdout, output.stderr].concat();
            Err(String::from_utf8_lossy(&said).into_owned())
        }
    });
    match installed {
        Ok(clients) => clients,
        Err(sentence) => panic!("{sentence}"),
    }
}
