//! What Windows nodes say of themselves.

use mullion_api::{ami::Os, labels};
use mullion_cloud::catalogue;
use mullion_engine::ip::{Kind, PREFIX_SIZE};
use serde_json::Value;

use super::{
    super::{
        found::Found,
        report::counted,
        snapshot::{Snapshot, Unknown, name_of},
    },
    instance_type, is_ready, nodes,
    switches::settings,
};

/// Returns how many pods a node of this type can give addresses; none if Windows nodes of the type get none.
pub(super) fn addresses(name: &str, prefix_delegation: bool) -> Option<usize> {
    let kind = catalogue::get(name).filter(|kind| kind.runs(Os::Windows))?;
    let slots = kind.ipv4_per_eni.saturating_sub(1) as usize;
    Some(match prefix_delegation && kind.is_nitro() {
        true => slots * PREFIX_SIZE,
        false => slots,
    })
}

fn advertised(node: &Value, field: &str) -> Option<usize> {
    node["status"][field][labels::PRIVATE_IPV4]
        .as_str()?
        .parse()
        .ok()
}

/// DOC04.
pub(in super::super) fn capacity(snapshot: &Snapshot) -> Result<Found, Unknown> {
    let nodes = nodes(snapshot, true)?;
    let ready: Vec<_> = nodes.into_iter().filter(|node| is_ready(node)).collect();
    if ready.is_empty() {
        return Ok(Found::not_needed("no Windows node is ready"));
    }
    let settings = settings(snapshot)?;
    if !settings.windows_ipam {
        return Ok(Found::not_needed("Windows IP management is off (DOC01)"));
    }
    let prefixes = settings.kind(true) == Kind::Prefix;
    let mut found = Found::default();
    let mut sum = 0;
    for node in &ready {
        let (name, kind) = (name_of(node), instance_type(node));
        let has = advertised(node, "capacity");
        sum += has.unwrap_or(0);
        let Some(expected) = addresses(kind, prefixes) else {
            let text = match kind {
                "" => format!(
                    "node {name} does not say its instance type, so that its addresses cannot be counted"
                ),
                kind => format!(
                    "node {name} is a {kind}, which the address controller does not know for Windows: its pods get no address"
                ),
            };
            found
                .fail(text)
                .advise("replace the node by one of a type such as m5.large");
            continue;
        };
        match has {
            None | Some(0) => {
                found
                    .fail(format!("node {name} ({kind}) advertises no {}: no pod with an address fits there", labels::PRIVATE_IPV4))
                    .advise("see what the controller says of the node, and replace it if nothing helps:")
                    .command(format!("kubectl describe node {name}"))
                    .command(format!("kubectl drain {name} --ignore-daemonsets --delete-emptydir-data"));
            }
            Some(has) if has < expected => {
                found
                    .warn(format!("node {name} ({kind}) advertises {has} addresses where a new one has {expected}: it was made in the other mode, or its interface holds other addresses"))
                    .advise("replace the node when its pods can move:")
                    .command(format!("kubectl drain {name} --ignore-daemonsets --delete-emptydir-data"));
            }
            Some(has) if advertised(node, "allocatable") != Some(has) => {
                found
                    .warn(format!("node {name} has {has} addresses, and its kubelet has not told the scheduler so"))
                    .advise("it does with its next status; if it stays so, restart the service kubelet on the node");
            }
            Some(_) => {}
        }
    }
    found.state = format!(
        "{} on {}",
        counted(sum, "address", "addresses"),
        counted(ready.len(), "Windows node", "Windows nodes")
    );
    Ok(found)
}
