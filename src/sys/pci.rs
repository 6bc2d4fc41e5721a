//! What the kernel tells of a device on the PCI bus.
//!
//! Every function takes the root of the file tree, and an address as the kernel writes it: `0000:1b:00.0`.

use std::path::Path;

use super::kfd::read;

/// The memory domain that a slot is near; `None` if the kernel does not tell.
#[must_use]
pub fn memory_domain(root: &Path, address: &str) -> Option<u32> {
    // The kernel writes -1 where it does not know.
    attribute(root, address, "numa_node")?.parse().ok()
}

/// The class of a device as the bus numbers it; `None` if the kernel does not tell.
#[must_use]
pub fn class(root: &Path, address: &str) -> Option<u32> {
    number(&attribute(root, address, "class")?)
}

/// The revision of a device; `None` if the kernel does not tell.
#[must_use]
pub fn revision(root: &Path, address: &str) -> Option<u32> {
    number(&attribute(root, address, "revision")?)
}

/// The product that a board says to be; `None` for a board that does not say.
#[must_use]
pub fn product_name(root: &Path, address: &str) -> Option<String> {
    attribute(root, address, "product_name").filter(|name| !name.is_empty())
}

/// An address in the kernel's form: lower case, a domain of four digits; `None` for what is no address.
#[must_use]
pub fn normal(address: &str) -> Option<String> {
    let mut parts = address.trim().split(':');
    let hexadecimal = |text: &str, limit: u32| {
        let valid = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = valid.then(|| u32::from_str_radix(text, 16).ok()).flatten();
        number.filter(|number| *number <= limit)
    };
    let domain = hexadecimal(parts.next()?, u32::MAX)?;
    let bus = hexadecimal(parts.next()?, 0xff)?;
    let (device, function) = parts.next()?.split_once('.')?;
    let (device, function) = (hexadecimal(device, 0x1f)?, hexadecimal(function, 7)?);
    parts.next().is_none().then(|| format!("{domain:04x}:{bus:02x}:{device:02x}.{function}"))
}

fn attribute(root: &Path, address: &str, name: &str) -> Option<String> {
    let folder = root.join("sys/bus/pci/devices").join(normal(address)?);
    Some(read(&folder.join(name))?.trim().to_owned())
}

fn number(text: &str) -> Option<u32> {
    u32::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_take_the_kernels_form() {
        for address in ["00000000:1B:00.0", "0000:1b:00.0", "0:1b:0.0"] {
            assert_eq!(normal(address).as_deref(), Some("0000:1b:00.0"), "{address}");
        }
        for odd in [
            "",
            "1b:00.0",
            "0000:1b:00",
            "0000:100:00.0",
            "0000:1b:20.0",
            "0000:1b:00.8",
            "../x:0.0",
            "a:b:c:d.0",
            "0:+1:0.0",
        ] {
            assert_eq!(normal(odd), None, "{odd}");
        }
    }

    #[test]
    fn what_the_kernel_does_not_tell_is_none() {
        let root = Path::new("/nowhere");
        assert_eq!(memory_domain(root, "0000:00:00.0"), None);
        assert_eq!(class(root, "nonsense"), None);
    }
}
