//! Checks that every Windows pod has an address, or waits for a good reason. Pods with one cause and one remedy share a problem.

use std::collections::BTreeMap;

use mullion_api::labels;
use serde_json::Value;

use super::{
    super::{
        change::Change,
        findings::Findings,
        report::{counted, few},
        snapshot::{DryRun, Snapshot, Unknown, name_of, namespace_of},
    },
    pods::{is_replaced, title, windows_pods},
};
use crate::why::{
    hangs::is_settled,
    start::{address, has_network, requests_address},
};

/// The maximum number of pods of one problem that the command to describe them names.
const MOST_DESCRIBED: usize = 3;

/// Checks DOC05: every Windows pod has an address, or waits for a good reason.
pub(in super::super) fn check(snapshot: &Snapshot) -> Result<Findings, Unknown> {
    let pods = windows_pods(snapshot)?;
    let pods: Vec<_> = pods.into_iter().filter(|pod| has_network(pod)).collect();
    if pods.is_empty() {
        return Ok(Findings::not_needed("there is no Windows pod"));
    }
    let mut found = Findings::state(format!(
        "{} with a request for an address",
        counted(pods.len(), "Windows pod", "Windows pods")
    ));
    let mut unasked: BTreeMap<Unasked, Vec<&Value>> = BTreeMap::new();
    let mut waiting: BTreeMap<Option<&str>, Vec<&Value>> = BTreeMap::new();
    // Without the permission to list Events, only the controller's message is missing below.
    let events = snapshot.all("Event");
    for pod in &pods {
        if address(pod).is_some() {
            continue;
        }
        if !requests_address(pod) {
            let unasked = unasked.entry(Unasked::of(pod, snapshot)).or_default();
            unasked.push(pod);
        } else if pod["spec"]["nodeName"].is_string() && is_settled(pod, snapshot.now) {
            let own = events.as_ref().ok().and_then(|events| {
                let mut events = events.iter().rev();
                events.find(|own| own["involvedObject"]["uid"] == pod["metadata"]["uid"])
            });
            let said = own.and_then(|own| own["message"].as_str());
            waiting.entry(said).or_default().push(pod);
        }
    }
    for (why, pods) in &unasked {
        add_unasked(*why, pods, &mut found);
    }
    for (said, pods) in &waiting {
        let said = said.map(|said| format!("; the controller says: {said}"));
        let (wait, its) = if pods.len() == 1 {
            ("waits", "its")
        } else {
            ("wait", "their")
        };
        let problem = found.fail(format!(
            "{} {wait} for {its} address for more than a minute{}",
            titles(pods),
            said.unwrap_or_default()
        ));
        problem.advise(format!(
            "see what {its} subnet and {its} node have left (DOC04, DOC14, DOC23):"
        ));
        // Their events are alike, and a command with hundreds of names helps nobody.
        for command in commands("describe", &pods[..pods.len().min(MOST_DESCRIBED)]) {
            problem.command(command);
        }
    }
    Ok(found)
}

/// Why a pod requests no address, and what helps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Unasked {
    /// It was created too early, and its controller replaces it by one with the request.
    Replaced,
    /// It was created too early, and a new one would have the request.
    Early,
    /// It was created too early, and a new one would lack the request too.
    EarlyAndUnmended,
    /// The webhook does not see that it is a Windows pod.
    Unseen,
}

impl Unasked {
    fn of(pod: &Value, snapshot: &Snapshot) -> Self {
        let selector = &pod["spec"]["nodeSelector"];
        let is_seen = selector[labels::OS] == labels::OS_WINDOWS
            || selector[labels::BETA_OS] == labels::OS_WINDOWS;
        let is_mended = matches!(&snapshot.dry_run, DryRun::Admitted(new) if requests_address(new));
        if !is_seen {
            Self::Unseen
        } else if !is_mended {
            Self::EarlyAndUnmended
        } else if is_replaced(pod) {
            Self::Replaced
        } else {
            Self::Early
        }
    }
}

/// Adds the problem of pods that request no address.
fn add_unasked(why: Unasked, pods: &[&Value], found: &mut Findings) {
    let is_one = pods.len() == 1;
    let cause = match (why, is_one) {
        (Unasked::Unseen, true) => {
            "it does not choose Windows by its nodeSelector, the only thing that EKS's webhook reads"
        }
        (Unasked::Unseen, false) => {
            "they do not choose Windows by their nodeSelector, the only thing that EKS's webhook reads"
        }
        (_, true) => "it was created while Windows IP management was off or the webhook was down",
        (_, false) => {
            "they were created while Windows IP management was off or the webhook was down"
        }
    };
    let (request, get) = if is_one {
        ("requests", "gets")
    } else {
        ("request", "get")
    };
    let problem = found.fail(format!(
        "{} {request} no address and {get} none: {cause}",
        titles(pods)
    ));
    match why {
        Unasked::Replaced => {
            for pod in pods {
                problem.with_fix(Change::delete(pod));
            }
            return;
        }
        Unasked::Early => {}
        Unasked::EarlyAndUnmended | Unasked::Unseen => {
            let template = if is_one {
                "its template"
            } else {
                "their templates"
            };
            if why == Unasked::Unseen {
                problem.advise(format!(
                    "add nodeSelector kubernetes.io/os: windows to {template}"
                ));
            }
            let them = if is_one { "it" } else { "them" };
            problem.advise(format!(
                "create {them} anew when new pods get the request (DOC01, DOC03):"
            ));
        }
    }
    for command in commands("delete", pods) {
        problem.command(command);
    }
}

/// Names pods for the beginning of a sentence.
fn titles(pods: &[&Value]) -> String {
    let titles = few(pods.iter().map(|pod| title(pod)));
    match pods.len() {
        1 => format!("pod {titles}"),
        _ => format!("pods {titles}"),
    }
}

/// Returns the commands that do something to pods, one for each namespace.
fn commands(verb: &str, pods: &[&Value]) -> Vec<String> {
    let mut homes: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for pod in pods {
        homes
            .entry(namespace_of(pod))
            .or_default()
            .push(name_of(pod));
    }
    let commands = homes
        .iter()
        .map(|(home, names)| format!("kubectl -n {home} {verb} pod {}", names.join(" ")));
    commands.collect()
}
