//! Says for people why a pod does not run or is not ready.

use mullion_api::labels;

use super::{Container, OF_ANOTHER_NODE, Progress, RUNNING, Start, WAITING};
use crate::why::readiness::{Gate, Unready};

impl Start {
    /// Returns the sentence that says that the pod, or a part of it, does not run, without a full stop.
    pub(in crate::why) fn summary(&self) -> String {
        if let Some(failed) = &self.failed {
            let why = words([&failed.reason, &failed.message]);
            return format!("It has failed and is not started again{why}");
        }
        match self.init_containers {
            // The init containers of a pod that runs are done; a sidecar among them may have to start again.
            Some(Progress { done, all }) if done < all && self.phase == "Pending" => {
                let are = if done == 1 { "is" } else { "are" };
                format!("It does not run yet: {done} of its {all} init containers {are} done")
            }
            _ if self.phase == "Running" && self.containers.is_empty() => {
                "It runs and is not ready".to_owned()
            }
            _ if self.phase == "Running" && self.some_run => {
                "Not all of its containers run".to_owned()
            }
            _ => "It does not run".to_owned(),
        }
    }

    /// Returns what keeps the pod from running, one line each.
    pub(in crate::why) fn reasons(&self) -> Vec<String> {
        let mut all = Vec::new();
        let mut open: Vec<&Container> = self.containers.iter().collect();
        while let Some(first) = open.first().copied() {
            // Containers in the same state share a line.
            let (alike, others): (Vec<_>, Vec<_>) =
                open.into_iter().partition(|own| own.is_like(first));
            all.push(described(&alike));
            open = others;
        }
        all.extend(self.unready.iter().map(Unready::sentence));
        all.extend(self.gates.iter().map(Gate::sentence));
        if self.awaits_address {
            all.push(format!(
                "it has no address yet: the annotation {} is missing",
                labels::PRIVATE_IPV4
            ));
        }
        for own in &self.conditions {
            // What is not initialized has been said by the init containers.
            if own.kind == "Initialized" && self.init_containers.is_some() {
                continue;
            }
            let why = words([&own.reason, &own.message]);
            all.push(format!("condition {} is False{why}", own.kind));
        }
        for own in &self.events {
            let why = words([&own.reason, &own.message]);
            all.push(format!("event{why}"));
        }
        all
    }

    /// Returns what the user can do, as a sentence without a full stop; `None` where the reasons say it.
    pub(in crate::why) fn advice(&self) -> Option<&'static str> {
        if let Some(failed) = &self.failed {
            let is_of_another = OF_ANOTHER_NODE.contains(&failed.reason.as_str());
            return is_of_another.then_some(
                "Its node is none that it asks for: remove spec.nodeName, or name the node's operating system in the node selector (kubernetes.io/os) and in spec.os.name, and create it anew",
            );
        }
        if self.awaits_address {
            Some(
                "It gets one as soon as its node has one to give: `mullion doctor` says whether the node's subnet is full or fragmented (DOC14) and what the address controller knows of the node (DOC23)",
            )
        } else if !self.unready.is_empty() {
            Some(
                "Services send it no traffic until it is ready: `kubectl describe pod` shows what its probes are answered, `kubectl logs` what its containers say",
            )
        } else if !self.gates.is_empty() {
            Some(
                "Services send it no traffic until it is ready: see that the controller of the readiness gate runs, which sets the condition in the pod's status",
            )
        } else {
            None
        }
    }
}

impl Container {
    /// Returns whether both containers are in the same state.
    fn is_like(&self, other: &Container) -> bool {
        let is_same = (self.state, self.last_exit_code) == (other.state, other.last_exit_code);
        is_same && self.reason == other.reason && self.message == other.message
    }
}

/// Describes containers that are in the same state.
fn described(alike: &[&Container]) -> String {
    let Some(first) = alike.first() else {
        return String::new();
    };
    let names: Vec<_> = alike.iter().map(|own| own.name.as_str()).collect();
    let is_one = names.len() == 1;
    let (noun, waits) = if is_one {
        ("container", "waits")
    } else {
        ("containers", "wait")
    };
    let code = first.last_exit_code;
    let code = code.map(|code| format!(" with exit code {code}"));
    let (verb, before) = match (first.state, code) {
        (WAITING, Some(code)) => (waits, format!(", having ended{code}")),
        (WAITING, None) => (waits, String::new()),
        (RUNNING, _) => ("runs", String::new()),
        (_, code) => ("ended", code.unwrap_or_default()),
    };
    let why = words([&first.reason, &first.message]);
    format!("{noun} {} {verb}{before}{why}", names.join(", "))
}

/// Joins what there is of a reason and a message, with a colon before each, in one line.
pub(in crate::why) fn words(all: [&String; 2]) -> String {
    let all = all.into_iter().filter(|own| !own.is_empty());
    let lines = all.map(|own| own.lines().collect::<Vec<_>>().join(" "));
    lines.map(|own| format!(": {own}")).collect()
}
