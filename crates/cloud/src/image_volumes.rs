//! The volumes of machine images: on which devices, from snapshots of which size.
//!
//! Invariant: EC2 makes no volume that is smaller than the snapshot it begins with, so a launch that asks for a smaller one on an image's
//! device is refused ([`NodeImage::check_volumes`]). A volume on any other device is an empty one of its own.

use mullion_api::{ami::AmiFamily, karpenter::BlockDeviceMapping};

use crate::{
    CloudError,
    image::{ImageVariant, NodeImage, fnv1a},
    template::volume_gib,
};

/// One volume of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageVolume {
    /// The device, such as `/dev/xvda`.
    pub device: &'static str,
    /// The size of its snapshot in GiB; `None` where nothing is known of it.
    pub snapshot_gib: Option<u64>,
    /// The size in GiB of a volume for which a launch names none.
    pub default_gib: u64,
}

impl NodeImage {
    /// Returns the volumes of the image, that with the operating system first.
    pub fn volumes(&self) -> Vec<ImageVolume> {
        let volume = |device, snapshot_gib, default_gib| ImageVolume {
            device,
            snapshot_gib,
            default_gib,
        };
        match (self.family, self.variant) {
            (AmiFamily::Windows(..), _) => vec![volume("/dev/sda1", Some(50), 50)],
            // amazon-eks-ami builds Amazon Linux 2023 on 20 GiB, and Amazon Linux 2 on 4.
            (AmiFamily::AmazonLinux2023, _) => vec![volume("/dev/xvda", Some(20), 20)],
            (AmiFamily::AmazonLinux2, ImageVariant::Standard) => {
                vec![volume("/dev/xvda", Some(4), 20)]
            }
            (AmiFamily::Bottlerocket | AmiFamily::BottlerocketFips, variant) => {
                let system = match variant {
                    ImageVariant::Nvidia => 4,
                    _ => 2,
                };
                vec![
                    volume("/dev/xvda", Some(system), system),
                    volume("/dev/xvdb", Some(1), 20),
                ]
            }
            _ => vec![volume("/dev/xvda", None, 20)],
        }
    }

    /// Returns the id of the snapshot on a device.
    pub fn snapshot_id(&self, device: &str) -> String {
        format!("snap-0{:016x}", fnv1a(&format!("{}{device}", self.name)))
    }

    /// Refuses volumes, given by device and size in GiB, that are smaller than the image's snapshots.
    ///
    /// # Errors
    /// EC2's `InvalidBlockDeviceMapping` for the first volume that is too small.
    pub fn check_volumes<'a>(
        &self,
        sizes: impl IntoIterator<Item = (&'a str, u64)>,
    ) -> Result<(), CloudError> {
        let own = self.volumes();
        for (device, gib) in sizes {
            let same = own.iter().find(|volume| volume.device == device);
            let least = same.and_then(|volume| volume.snapshot_gib);
            if let Some(least) = least.filter(|least| gib < *least) {
                let snapshot = self.snapshot_id(device);
                return Err(CloudError::Unfulfilled {
                    code: "InvalidBlockDeviceMapping".to_owned(),
                    message: format!(
                        "Volume of size {gib}GB is smaller than snapshot '{snapshot}', expect size>= {least}GB"
                    ),
                });
            }
        }
        Ok(())
    }

    /// Refuses mappings of an EC2NodeClass as [`NodeImage::check_volumes`] does. A mapping that names a snapshot of its own does not begin
    /// with the image's.
    ///
    /// # Errors
    /// EC2's `InvalidBlockDeviceMapping` for the first volume that is too small.
    pub fn check_mappings(&self, mappings: &[BlockDeviceMapping]) -> Result<(), CloudError> {
        let sized = mappings.iter().filter_map(|mapping| {
            let volume = mapping.ebs.as_ref()?;
            let is_of_image = volume.snapshot_id.is_none();
            let gib = volume_gib(volume.volume_size.as_deref()?)?;
            let device = mapping.device_name.as_deref()?;
            is_of_image.then_some((device, gib))
        });
        self.check_volumes(sized)
    }
}
