//! Implements `--fix`: shows each change, asks for confirmation, makes it, and reads the cluster again.

use std::io::{BufRead, IsTerminal, Write};

use kube::Client;

use super::{
    Row,
    change::Versions,
    examine,
    report::counted,
    snapshot::{self, Snapshot},
};
use crate::{failure::Failure, out};

/// The largest number of rounds. A change may reveal another problem; if that does not end, a check is wrong.
const ROUNDS: usize = 4;

/// Makes the changes that the checks suggest, and returns a new snapshot of the cluster with its rows.
///
/// # Errors
/// The cluster does not answer, or there is no terminal to ask for confirmation.
pub(super) async fn apply_fixes(
    client: &Client,
    mut snapshot: Snapshot,
    mut rows: Vec<Row>,
    yes: bool,
) -> Result<(Snapshot, Vec<Row>), Failure> {
    let (mut made, mut asked) = (0, Vec::new());
    for _ in 0..ROUNDS {
        // Every round begins with objects that were just read, so the versions of the last one are out of
        // date.
        let (mut made_now, mut versions) = (0, Versions::new());
        for row in &rows {
            for change in row.found.changes() {
                let command = change.command();
                // A change that the user or the API server refused is not suggested again.
                if asked.contains(&command) {
                    continue;
                }
                out::aside(&format!("{}  {}", row.check.id, row.check.title));
                out::aside(&format!("  {command}"));
                asked.push(command);
                if !yes && !agreed()? {
                    continue;
                }
                match change.make(client, &mut versions).await {
                    Ok(()) => made_now += 1,
                    Err(why) => out::aside(&format!("  not changed: {why}")),
                }
            }
        }
        made += made_now;
        if made_now == 0 {
            break;
        }
        snapshot = snapshot::take(client, &snapshot.server).await?;
        rows = examine(&snapshot, false);
    }
    out::aside(&match made {
        0 => "Nothing was changed.\n".to_owned(),
        made => format!("{} made.\n", counted(made, "change", "changes")),
    });
    Ok((snapshot, rows))
}

/// Asks the user to confirm a change.
fn agreed() -> Result<bool, Failure> {
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        return Err(
            Failure::input("--fix asks before each change, and stdin is no terminal")
                .hint("mullion doctor --fix --yes makes the changes without asking"),
        );
    }
    let mut stderr = std::io::stderr();
    // If the terminal is gone, reading the answer below fails.
    let _ = write!(stderr, "  Make this change? [y/N] ");
    let _ = stderr.flush();
    let mut line = String::new();
    let read = stdin.lock().read_line(&mut line);
    read.map_err(|error| Failure::run(format!("the answer cannot be read: {error}")))?;
    Ok(matches!(
        line.trim().to_ascii_lowercase().as_str(),
        "y" | "yes"
    ))
}
