"""Types that several APIs share."""
