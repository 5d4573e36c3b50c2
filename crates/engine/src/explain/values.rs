//! The values that labels of machines can have, as far as they are known, and the known value that a wrong one is closest to.

use std::collections::BTreeSet;

use crate::cluster::Cluster;
use crate::error::ModelError;
use crate::model::{Operator, PodTemplate, label};
use crate::provision::{Machine, NodeTemplate, machines};
use crate::remedy::{Demands, demand_text as asked_of, known_values, nearest};

/// Returns the word for the values of a label that the machine determines, such as "type"; `None` for labels whose values users
/// invent.
pub(super) fn noun(key: &str) -> Option<&'static str> {
    Some(match key {
        label::INSTANCE_TYPE => "type",
        label::ZONE => "zone for this pool",
        label::CAPACITY_TYPE => "capacity type",
        label::ARCH => "architecture",
        label::OS => "operating system",
        _ if key.ends_with("/instance-family") => "instance family",
        _ if key.ends_with("/instance-category") => "instance category",
        _ if key.ends_with("/instance-size") => "instance size",
        _ => return None,
    })
}

impl Cluster {
    /// Returns a sentence for each value that a pod requires and no machine can have; it names the closest existing value.
    ///
    /// # Errors
    /// Returns an error if a pool has an invalid amount.
    pub fn wrong_values(
        &mut self,
        pod: &PodTemplate,
        pools: &[NodeTemplate],
    ) -> Result<Vec<String>, ModelError> {
        let mut sold: Vec<Machine> = Vec::new();
        for pool in pools {
            sold.extend(machines(pool, self)?);
        }
        let demands = Demands::of(pod, self.names_mut());
        let names = self.names();
        let mut words = Vec::new();
        for demand in demands.all() {
            let key = &demand.key;
            // The zones differ between pools; the text about each pool covers them.
            let Some(noun) = noun(key).filter(|_| key != label::ZONE) else {
                continue;
            };
            let of_machine = |machine: &Machine| demand.found(&machine.labels, names);
            let of_node = |node| demand.found(&self.at(node).fixed.labels, names);
            let there = sold.iter().filter_map(of_machine);
            let there: BTreeSet<&str> = there.chain(self.nodes().filter_map(of_node)).collect();
            let known = known_values(key);
            // If nothing is known to be on sale, the values of existing nodes are only some of the possible ones, so
            // nothing can be called wrong.
            if known.is_empty() && sold.is_empty() {
                continue;
            }
            let is_right = |value: &str| there.contains(value) || known.contains(&value);
            for wanted in demand.wanted() {
                let all = known.iter().copied().chain(there.iter().copied());
                if let (false, Some(near)) = (is_right(wanted), nearest(wanted, all)) {
                    words.push(format!("{key}={wanted}: no such {noun}; nearest {near}"));
                }
            }
        }
        words.dedup();
        Ok(words)
    }
}

/// Returns the requirements of a pool that none of these machines satisfies, with the closest existing values.
pub(super) fn unmet_requirements(
    pool: &NodeTemplate,
    sold: &[Machine],
    cluster: &Cluster,
) -> Option<String> {
    let names = cluster.names();
    let value = |machine: &Machine, key: &str| {
        let value = machine.labels.value(names.find(key)?)?;
        Some(names.text(value).to_owned())
    };
    let mut words = Vec::new();
    for own in pool.decided() {
        let values: BTreeSet<String> = sold.iter().filter_map(|m| value(m, &own.key)).collect();
        // Requirements that some machine meets may still exclude each other; that is not reported here.
        if values.iter().any(|value| own.is_met_by(Some(value))) {
            continue;
        }
        let asked = format!("{}{}", own.key, asked_of(own.operator, &own.values));
        let near = own.values.first().filter(|_| own.operator == Operator::In);
        let near = near.and_then(|first| nearest(first, values.iter().map(String::as_str)));
        words.push(match near {
            Some(near) => format!("{asked}; nearest {near}"),
            None => asked,
        });
    }
    (!words.is_empty()).then(|| {
        format!(
            "no instance type meets the pool's requirement {}",
            words.join(", nor ")
        )
    })
}
