"""What tests, demos and users' own tests share: data with known properties."""
