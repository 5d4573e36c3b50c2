//! Nodes that accept no pods yet, in the shape that they will have.

use super::InFlightNode;
use super::open_labels::add_former_names;
use crate::cluster::Cluster;
use crate::error::ModelError;
use crate::model::label;

impl Cluster {
    /// Adds a node that accepts no pods yet, or replaces what is known of it, and binds its expected pods to it.
    ///
    /// # Errors
    /// Returns an error if the node offers a negative amount, or one of its pods has a negative request.
    pub fn set_in_flight(&mut self, in_flight: &InFlightNode) -> Result<(), ModelError> {
        let mut node = in_flight.node.clone();
        add_former_names(&mut node.labels);
        // Every kubelet sets this label. Pods that are spread over hosts, or share one, go only where it is.
        let hostname = node.labels.entry(label::HOSTNAME.to_owned());
        hostname.or_insert_with(|| node.name.clone());
        if node.allocatable.is_empty() {
            node.allocatable = node.capacity.clone();
        }
        self.set_node(&node)?;
        for pod in &in_flight.pods {
            match self.bind(pod, &node.name) {
                // The pod was bound meanwhile, there or elsewhere.
                Ok(()) | Err(ModelError::DuplicatePod(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
