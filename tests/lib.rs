//! Only tests live here; see `system/`.
