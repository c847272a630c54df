"""All code that uses torch: tracing, insertion of quantizers, fine-tuning and export."""
