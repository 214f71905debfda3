"""The Gymnasium environments; they are made by id (`inframind_gym.registration`)."""
