//! Discovers the kinds that the API serves, for the controllers that act on every kind.

use kube::{
    Client, Discovery,
    discovery::{ApiResource, Scope, verbs},
};

/// A kind in one version.
#[derive(Clone, Debug)]
pub struct Kind {
    /// The resource by which the kind is addressed.
    pub resource: ApiResource,
    /// Whether the kind is namespaced.
    pub namespaced: bool,
    operations: Vec<String>,
}

impl Kind {
    /// Returns whether the kind supports the verb.
    pub fn supports(&self, verb: &str) -> bool {
        self.operations.iter().any(|operation| operation == verb)
    }

    /// Returns whether objects can be listed, watched and deleted.
    pub fn is_manageable(&self) -> bool {
        [verbs::LIST, verbs::WATCH, verbs::DELETE]
            .iter()
            .all(|verb| self.supports(verb))
    }
}

/// All kinds that the API serves.
#[derive(Clone, Debug, Default)]
pub struct Kinds {
    preferred: Vec<Kind>,
    all: Vec<Kind>,
}

impl Kinds {
    /// Asks the API server for its kinds.
    pub async fn discover(client: &Client) -> kube::Result<Self> {
        let discovery = match Discovery::new(client.clone()).run_aggregated().await {
            Ok(discovery) => discovery,
            // Servers before 1.26 do not support aggregated discovery.
            Err(_) => Discovery::new(client.clone()).run().await?,
        };
        let kind =
            |(resource, capabilities): (ApiResource, kube::discovery::ApiCapabilities)| Kind {
                resource,
                namespaced: capabilities.scope == Scope::Namespaced,
                operations: capabilities.operations,
            };
        let mut kinds = Self::default();
        for group in discovery.groups_alphabetical() {
            let mut preferred: Vec<_> = group
                .resources_by_stability()
                .into_iter()
                .map(kind)
                .collect();
            // The order of discovery varies; messages that list kinds should not.
            preferred.sort_by(|a, b| a.resource.plural.cmp(&b.resource.plural));
            kinds.preferred.append(&mut preferred);
            for version in group.versions() {
                kinds
                    .all
                    .extend(group.versioned_resources(version).into_iter().map(kind));
            }
        }
        Ok(kinds)
    }

    /// Iterates each kind once, in its most stable version.
    pub fn preferred(&self) -> impl Iterator<Item = &Kind> {
        self.preferred.iter()
    }

    /// Returns the kind with that name in exactly that version.
    pub fn find(&self, api_version: &str, kind: &str) -> Option<&Kind> {
        self.all
            .iter()
            .find(|known| known.resource.api_version == api_version && known.resource.kind == kind)
    }
}
