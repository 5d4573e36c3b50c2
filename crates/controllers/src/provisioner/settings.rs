//! Karpenter's settings, by its names and with its defaults where it has them.

use std::time::Duration;

use mullion_cloud::MemoryOverhead;
use mullion_engine::provision::{MinValuesPolicy, PreferencePolicy};

/// How pods are gathered into plans, and what plans heed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// A batch ends when this long nothing new came (`BATCH_IDLE_DURATION`).
    pub batch_idle: Duration,
    /// A batch ends at the latest this long after it began (`BATCH_MAX_DURATION`).
    pub batch_max: Duration,
    /// How much what pods prefer counts for the nodes to buy (`PREFERENCE_POLICY`). Karpenter's default, to keep preferences at any price, has to be
    /// asked for.
    pub preferences: PreferencePolicy,
    /// What the `minValues` of a pool do where they cannot be met (`MIN_VALUES_POLICY`).
    pub min_values: MinValuesPolicy,
    /// The part of a type's memory that its nodes are expected not to show, until one is there (`VM_MEMORY_OVERHEAD_PERCENT`).
    pub vm_memory_overhead: MemoryOverhead,
    /// Interfaces that are left out when a node's pods are counted (`RESERVED_ENIS`).
    pub reserved_enis: u64,
    /// Whether EC2NodeClasses are ready without dry runs of their launches (`DISABLE_DRY_RUN`).
    pub disable_dry_run: bool,
    /// Whether nothing is bought in zones that the cluster is shifted away from (`ENABLE_ZONAL_SHIFT`).
    pub zonal_shift: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            batch_idle: Duration::from_secs(1),
            batch_max: Duration::from_secs(10),
            preferences: PreferencePolicy::default(),
            min_values: MinValuesPolicy::default(),
            vm_memory_overhead: MemoryOverhead::default(),
            reserved_enis: 0,
            disable_dry_run: false,
            zonal_shift: false,
        }
    }
}
